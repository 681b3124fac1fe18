package gantrymq.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * DefaultMQProducer of 5.3: {@code count} messages that are due {@code after} ms from now; then each line of stdin, a
 * topic and a handle, is a message to take back. By reflection, as 4.9 has none of it and is built from these sources.
 */
final class Recall {
    private Recall() {
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("recall-producer");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Method deliverAt = Message.class.getMethod("setDeliverTimeMs", long.class);
        Method handleOf = SendResult.class.getMethod("getRecallHandle");
        Method recall = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        long due = System.currentTimeMillis() + options.number("after", 0);
        for (int i = 0; i < options.number("count", 0); i++) {
            Message message = Content.message(options.text("topic"), 1, i);
            deliverAt.invoke(message, due);
            SendResult result = producer.send(message);
            Lines.print(
                "event", "waits", "index", i, "msgId", result.getMsgId(), "due", due, "handle",
                handleOf.invoke(result));
        }
        Lines.event("started");
        Lines.eachOrder(order -> {
            String[] words = order.split(" ");
            try {
                Lines.print("event", "recalled", "code", 0, "text", recall.invoke(producer, words[0], words[1]));
            } catch (InvocationTargetException wrapped) {
                Throwable error = wrapped.getCause();
                boolean said = error instanceof MQBrokerException;
                Lines.print(
                    "event", "recalled", "code", said ? ((MQBrokerException) error).getResponseCode() : -1, "text",
                    said ? ((MQBrokerException) error).getErrorMessage() : error.getMessage());
            }
            Lines.flush();
        });
        producer.shutdown();
    }
}
