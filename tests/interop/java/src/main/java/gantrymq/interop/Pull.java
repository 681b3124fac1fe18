package gantrymq.interop;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQPullConsumer: one pull of {@code limit} messages from the start of queue 0, with its status and size. */
final class Pull {
    private Pull() {
    }

    @SuppressWarnings("deprecation")
    static void run(Options options) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.text("topic"))) {
            if (queue.getQueueId() == 0) {
                PullResult result = consumer.pull(queue, options.text("tags", "*"), 0, options.number("limit", 32));
                Lines.print(
                    "event", "pulled", "status", result.getPullStatus().name(), "next", result.getNextBeginOffset(),
                    "found", result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size());
            }
        }
        consumer.shutdown();
        Lines.event("stopped");
    }
}
