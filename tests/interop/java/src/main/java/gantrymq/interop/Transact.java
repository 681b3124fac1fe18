package gantrymq.interop;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * TransactionMQProducer. Each line of stdin is a transaction, {@code index local checks [delay [immunity]]}: the
 * outcome of its local branch and, joined by commas, those of its checks; the last one stands for all that follow.
 * What is asked about an index that no line named is answered as the option {@code known} says, {@code index:outcome}
 * joined by commas, or with unknown.
 */
final class Transact implements TransactionListener {
    private final Map<String, Queue<String>> checks = new ConcurrentHashMap<>();

    private Transact(String known) {
        for (String pair : known.isEmpty() ? new String[0] : known.split(",")) {
            checks.put(pair.split(":")[0], new ArrayDeque<>(Arrays.asList(pair.split(":")[1])));
        }
    }

    static void run(Options options) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group"), options.signer());
        options.connect(producer);
        producer.setSendMsgTimeout(10_000);
        producer.setHeartbeatBrokerInterval(1_000);
        Transact transact = new Transact(options.text("known", ""));
        producer.setTransactionListener(transact);
        producer.start();
        String topic = options.text("topic");
        int seed = options.number("seed", 1);
        Lines.event("started");
        Lines.eachOrder(line -> {
            String[] words = line.split(" ");
            int index = Integer.parseInt(words[0]);
            transact.checks.put(words[0], new ArrayDeque<>(Arrays.asList(words[2].split(","))));
            Message message = Content.message(topic, seed, index);
            if (words.length > 3 && !words[3].equals("0")) {
                message.setDelayTimeLevel(Integer.parseInt(words[3]));
            }
            if (words.length > 4) {
                message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", words[4]);
            }
            TransactionSendResult result = producer.sendMessageInTransaction(message, words[1]);
            Lines.print(
                "event", "sent", "index", index, "count", 1, "status", result.getSendStatus().name(),
                "msgId", result.getMsgId(),
                "broker", result.getMessageQueue().getBrokerName(), "queueId", result.getMessageQueue().getQueueId(),
                "queueOffset", result.getQueueOffset(), "transactionId", String.valueOf(result.getTransactionId()),
                "state", result.getLocalTransactionState().name());
            Lines.flush();
        });
        producer.shutdown();
        Lines.event("stopped");
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
        return state((String) outcome);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        Queue<String> outcomes = checks.get(message.getUserProperty("index"));
        String outcome = "unknown";
        if (outcomes != null) {
            synchronized (outcomes) {
                outcome = outcomes.size() > 1 ? outcomes.remove() : outcomes.element();
            }
        }
        message.setBrokerName(""); // which some releases do not know here
        try {
            synchronized (Lines.class) {
                Lines.print("event", "check", "transactionId", message.getTransactionId(), "answer", outcome);
                Lines.message(message);
                Lines.flush();
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return state(outcome);
    }

    private static LocalTransactionState state(String outcome) {
        switch (outcome) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown":
                return LocalTransactionState.UNKNOW;
            case "null":
                return null;
            default:
                throw new IllegalStateException("no outcome: " + outcome);
        }
    }
}
