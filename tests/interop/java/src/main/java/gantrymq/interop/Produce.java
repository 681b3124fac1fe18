package gantrymq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * DefaultMQProducer: {@code count} messages in each of {@code modes} (sync, async, oneway, batch), one after another;
 * those of sync with the delay level {@code delay}. With {@code hold} it stays until stdin says {@code stop}: traces
 * leave seconds later, and shutdown does not wait for them.
 */
final class Produce {
    private static final int IN_FLIGHT = 64;
    private static final int BATCH = 32;

    private final DefaultMQProducer producer;
    private final String topic;
    private final int seed;
    private final int delay;
    private int obeyed;

    private Produce(DefaultMQProducer producer, String topic, int seed, int delay) {
        this.producer = producer;
        this.topic = topic;
        this.seed = seed;
        this.delay = delay;
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(
            options.text("group", "interop-producer"), options.signer(), options.text("trace", "false").equals("true"),
            null);
        options.connect(producer);
        producer.setSendMsgTimeout(options.number("timeout", 10_000));
        producer.start();
        Produce produce =
            new Produce(producer, options.text("topic"), options.number("seed", 1), options.number("delay", 0));
        int count = options.number("count", 1);
        int index = options.number("first", 0);
        for (String mode : options.text("modes", "sync").split(",")) {
            produce.send(mode, index, index + count);
            index += count;
        }
        if (options.text("orders", "false").equals("true")) {
            produce.obey(index);
        }
        if (options.text("hold", "false").equals("true")) {
            Lines.event("held");
            Lines.awaitStop();
        }
        Lines.event("done");
        producer.shutdown();
    }

    /** Each line of stdin is a count of messages to send (sync), until {@code stop}. */
    private void obey(int index) throws Exception {
        Lines.event("started");
        Lines.eachOrder(order -> {
            int count = Integer.parseInt(order);
            send("sync", obeyed + index, obeyed + index + count);
            obeyed += count;
            Lines.event("obeyed");
        });
    }

    private void send(String mode, int from, int to) throws Exception {
        switch (mode) {
            case "sync":
                for (int i = from; i < to; i++) {
                    Message message = Content.message(topic, seed, i);
                    if (delay > 0) {
                        message.setDelayTimeLevel(delay);
                    }
                    report(i, 1, producer.send(message));
                }
                break;
            case "async":
                sendAsync(from, to);
                break;
            case "oneway":
                for (int i = from; i < to; i++) {
                    producer.sendOneway(Content.message(topic, seed, i));
                }
                break;
            case "batch":
                for (int i = from; i < to; i += BATCH) {
                    List<Message> batch = new ArrayList<>();
                    for (int k = i; k < Math.min(i + BATCH, to); k++) {
                        batch.add(Content.message(topic, seed, k));
                    }
                    report(i, batch.size(), producer.send(batch));
                }
                break;
            default:
                throw new IllegalArgumentException("unknown mode " + mode);
        }
    }

    private void sendAsync(int from, int to) throws Exception {
        Semaphore free = new Semaphore(IN_FLIGHT);
        for (int i = from; i < to; i++) {
            int index = i;
            free.acquire();
            producer.send(Content.message(topic, seed, i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    report(index, 1, result);
                    free.release();
                }

                @Override
                public void onException(Throwable error) {
                    Lines.print("event", "failed", "index", index, "error", String.valueOf(error));
                    free.release();
                }
            });
        }
        free.acquire(IN_FLIGHT);
    }

    private void report(int index, int count, SendResult result) {
        Lines.print(
            "event", "sent", "index", index, "count", count, "status", result.getSendStatus().name(),
            "msgId", result.getMsgId(), "offsetMsgId", result.getOffsetMsgId(), "region", result.getRegionId(),
            "broker", result.getMessageQueue().getBrokerName(), "queueId", result.getMessageQueue().getQueueId(),
            "queueOffset", result.getQueueOffset());
    }
}
