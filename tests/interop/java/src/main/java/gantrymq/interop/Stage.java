package gantrymq.interop;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** One push consumer and one producer at each of several nameservers, until stdin says {@code stop}. */
final class Stage {
    private Stage() {
    }

    static void run(Options options) throws Exception {
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<DefaultMQProducer> producers = new ArrayList<>();
        for (String namesrv : options.text("namesrvs").split(",")) {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("consumers"));
            consumer.setNamesrvAddr(namesrv);
            consumer.setHeartbeatBrokerInterval(2_000);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setPersistConsumerOffsetInterval(500);
            consumer.subscribe(options.text("topic"), "*");
            consumer.registerMessageListener(
                (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            consumer.start();
            consumers.add(consumer);
            DefaultMQProducer producer = new DefaultMQProducer(options.text("producers"));
            producer.setNamesrvAddr(namesrv);
            producer.setHeartbeatBrokerInterval(2_000);
            producer.start();
            producer.fetchPublishMessageQueues(options.text("topic"));
            producers.add(producer);
        }
        for (int i = 0; i < consumers.size(); i++) {
            Lines.print(
                "event", "client", "consumer", consumers.get(i).buildMQClientId(),
                "producer", producers.get(i).buildMQClientId());
        }
        Lines.event("started");
        Lines.awaitStop();
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producers.forEach(DefaultMQProducer::shutdown);
        Lines.event("stopped");
    }
}
