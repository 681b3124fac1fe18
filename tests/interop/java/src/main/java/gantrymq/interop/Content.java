package gantrymq.interop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.message.Message;

/** The message that a seed and an index stand for: {@code support.content} makes the same one. */
final class Content {
    private static final String[] TAGS = {"TagA", "TagB", "TagC", "标签"};
    private static final int[] SIZES = {10, 100, 1000, 5000, 64, 333};

    private Content() {
    }

    static Message message(String topic, int seed, int index) {
        byte[] start = (seed + "-" + index + "|").getBytes(StandardCharsets.US_ASCII);
        byte[] body = new byte[Math.max(SIZES[index % SIZES.length], start.length)];
        for (int k = 0; k < body.length; k++) {
            body[k] = k < start.length ? start[k] : (byte) (seed * 131 + index * 31 + k * 7 + (k >> 8));
        }
        String keys = "key-" + seed + "-" + index + (index % 3 == 0 ? " third-" + index : "");
        Message message = new Message(topic, TAGS[index % TAGS.length], keys, body);
        message.putUserProperty("index", String.valueOf(index));
        message.putUserProperty("greeting", "grüße 世界 😀");
        if (index % 5 == 0) {
            message.putUserProperty("long", "x".repeat(200));
        }
        return message;
    }
}
