package gantrymq.interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.common.message.Message;

/**
 * DefaultMQProducer that makes requests. Each line of stdin is {@code mode first count timeout}: so many requests with
 * the content of their index, {@code sync} one after the other, {@code async} all at once.
 */
final class Request {
    private Request() {
    }

    static void run(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(options.text("group")); // becomes a part of the client id
        producer.setHeartbeatBrokerInterval(1_000);
        producer.start();
        String topic = options.text("topic");
        int seed = options.number("seed", 1);
        Lines.event("started");
        Lines.eachOrder(line -> {
            String[] words = line.split(" ");
            int first = Integer.parseInt(words[1]);
            int count = Integer.parseInt(words[2]);
            long timeout = Long.parseLong(words[3]);
            CountDownLatch open = new CountDownLatch(count);
            for (int index = first; index < first + count; index++) {
                Message message = Content.message(topic, seed, index);
                if (words[0].equals("sync")) {
                    try {
                        replied(index, producer.request(message, timeout));
                    } catch (RequestTimeoutException error) {
                        failed(index, error);
                    }
                    open.countDown();
                } else {
                    producer.request(message, callback(index, open), timeout);
                }
            }
            open.await();
            Lines.event("obeyed");
        });
        producer.shutdown();
        Lines.event("stopped");
    }

    private static RequestCallback callback(int index, CountDownLatch open) {
        AtomicBoolean done = new AtomicBoolean();
        return new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                // The client also calls back when the request has been sent, mostly without a reply.
                if (message != null && done.compareAndSet(false, true)) {
                    replied(index, message);
                    open.countDown();
                }
            }

            @Override
            public void onException(Throwable error) {
                if (done.compareAndSet(false, true)) {
                    failed(index, error);
                    open.countDown();
                }
            }
        };
    }

    private static void replied(int index, Message message) {
        Lines.print(
            "event", "replied", "index", index, "body", Lines.hex(message.getBody()), "topic", message.getTopic(),
            "properties", message.getProperties());
        Lines.flush();
    }

    private static void failed(int index, Throwable error) {
        Lines.print("event", "failed", "index", index, "error", error.getClass().getSimpleName());
        Lines.flush();
    }
}
