package gantrymq.interop;

import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * DefaultMQPushConsumer that replies to each request with its body back to front. A request
 * whose index is among {@code held} (joined by commas) gets its reply when stdin says so: any line but {@code stop}.
 */
final class Respond {
    private Respond() {
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group") + "-replies");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(options.text("group"));
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), "*");
        String held = "," + options.text("held", "") + ",";
        Queue<MessageExt> waiting = new ConcurrentLinkedQueue<>();
        ExecutorService replies = Executors.newFixedThreadPool(8);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (held.contains("," + message.getUserProperty("index") + ",")) {
                    waiting.add(message);
                    Lines.print("event", "held", "index", Integer.parseInt(message.getUserProperty("index")));
                    Lines.flush();
                } else {
                    replies.execute(() -> reply(producer, message));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Lines.event("started");
        Lines.eachOrder(line -> {
            for (MessageExt message = waiting.poll(); message != null; message = waiting.poll()) {
                reply(producer, message);
            }
        });
        consumer.shutdown();
        replies.shutdown();
        producer.shutdown();
        Lines.event("stopped");
    }

    private static void reply(DefaultMQProducer producer, MessageExt request) {
        int index = Integer.parseInt(request.getUserProperty("index"));
        byte[] body = request.getBody();
        byte[] turned = new byte[body.length];
        for (int i = 0; i < body.length; i++) {
            turned[i] = body[body.length - 1 - i];
        }
        try {
            Message message = MessageUtil.createReplyMessage(request, turned);
            message.putUserProperty("index", String.valueOf(index));
            SendResult result = producer.send(message, 10_000);
            Lines.print(
                "event", "sent", "index", index, "status", result.getSendStatus().name(), "offsetMsgId",
                result.getOffsetMsgId(), "queueId", result.getMessageQueue().getQueueId(), "queueOffset",
                result.getQueueOffset(), "broker", result.getMessageQueue().getBrokerName(), "topic",
                message.getTopic());
        } catch (Exception error) {
            // After the last attempt the broker's answer is the cause.
            Throwable cause = error instanceof MQBrokerException ? error : error.getCause();
            boolean answered = cause instanceof MQBrokerException;
            Lines.print(
                "event", "refused", "index", index,
                "code", answered ? ((MQBrokerException) cause).getResponseCode() : -1,
                "remark", answered ? ((MQBrokerException) cause).getErrorMessage() : String.valueOf(error));
        }
        Lines.flush();
    }
}
