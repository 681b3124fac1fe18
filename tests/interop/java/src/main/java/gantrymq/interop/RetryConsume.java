package gantrymq.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * DefaultMQPushConsumer, concurrent or orderly: prints each message, and fails on those whose attempts are fewer than
 * {@code fail}. The order {@code unregister} lets it leave its group with its queues locked.
 */
final class RetryConsume {
    private RetryConsume() {
    }

    static void run(Options options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        var models = consumer.getMessageModel().getDeclaringClass();
        consumer.setMessageModel(Enum.valueOf(models, options.text("model", "CLUSTERING")));
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.setMaxReconsumeTimes(options.number("max", -1));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.subscribe(options.text("topic"), "*");
        int fail = options.number("fail", 0);
        int level = options.number("level", 0);
        int pause = options.number("pause", 0);
        if (options.text("orderly", "false").equals("true")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                report(messages.get(0), pause) < fail
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(level);
                return report(messages.get(0), pause) < fail
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        Lines.event("started");
        Lines.eachOrder(line -> {
            if (line.equals("unregister")) {
                consumer.suspend();
                consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().unregisterConsumer(options.text("group"));
                // Or it would ask for its locks again, each 20 s.
                consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().clear();
                Lines.event("unregistered");
            }
        });
        consumer.shutdown();
        Lines.event("stopped");
    }

    /** Prints the message; returns how often it was consumed before. */
    private static int report(MessageExt message, int pause) {
        try {
            Lines.message(message);
            Lines.flush();
            Thread.sleep(pause);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        return message.getReconsumeTimes();
    }
}
