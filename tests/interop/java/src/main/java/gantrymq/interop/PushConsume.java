package gantrymq.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** DefaultMQPushConsumer: prints each message until stdin says {@code stop}. */
final class PushConsume {
    private PushConsume() {
    }

    static void run(Options options) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.text("group"), options.signer(), new AllocateMessageQueueAveragely(),
            options.text("trace", "false").equals("true"), null);
        options.connect(consumer);
        // 5.3.3 may lose the heartbeat that tells the subscription of its first rebalance (it finds its own lock
        // taken), and every broker refuses its pulls until the next one: 30 s by default.
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // The enum's package differs between the versions, so it is never named.
        var models = consumer.getMessageModel().getDeclaringClass();
        consumer.setMessageModel(Enum.valueOf(models, options.text("model", "CLUSTERING")));
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // so that what was printed is committed
        String sql = options.text("sql", "");
        if (sql.isEmpty()) {
            consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        } else {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(sql));
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    Lines.message(message);
                }
                Lines.flush();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Lines.event("started");
        Lines.awaitStop();
        consumer.shutdown();
        Lines.event("stopped");
    }
}
