package gantrymq.interop;

import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** DefaultLitePullConsumer, by subscription or ({@code assign=true}) with all queues assigned, until {@code stop}. */
final class LitePullConsume {
    private LitePullConsume() {
    }

    static void run(Options options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        // 5.3.3 may lose the heartbeat that tells the subscription of its first rebalance (it finds its own lock
        // taken), and every broker refuses its pulls until the next one: 30 s by default.
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        boolean assign = Boolean.parseBoolean(options.text("assign", "false"));
        String topic = options.text("topic");
        if (!assign) {
            consumer.subscribe(topic, options.text("tags", "*"));
        }
        consumer.start();
        if (assign) {
            consumer.assign(consumer.fetchMessageQueues(topic));
        }
        Lines.event("started");
        AtomicBoolean stop = new AtomicBoolean();
        Thread poller = new Thread(() -> {
            try {
                while (!stop.get()) {
                    for (MessageExt message : consumer.poll(200)) {
                        Lines.message(message);
                    }
                    Lines.flush();
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        poller.start();
        Lines.awaitStop();
        stop.set(true);
        poller.join();
        consumer.commitSync();
        consumer.shutdown();
        Lines.event("stopped");
    }
}
