package gantrymq.interop;

import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** JSON lines on stdout, orders on stdin, unless a command has another input and output. */
final class Lines {
    private static BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private Lines() {
    }

    static void connect(BufferedReader input, OutputStream output) {
        in = input;
        out = new PrintStream(new BufferedOutputStream(output), false, StandardCharsets.UTF_8);
    }

    static synchronized void print(Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            line.put((String) pairs[i], pairs[i + 1]);
        }
        out.println(RemotingSerializable.toJson(line, false));
    }

    static synchronized void flush() {
        out.flush();
    }

    static void event(String name) {
        print("event", name);
        flush();
    }

    static void message(MessageExt message) throws Exception {
        byte[] body = message.getBody();
        print(
            "event", "message",
            "topic", message.getTopic(),
            "broker", message.getBrokerName(),
            "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(),
            "msgId", message.getMsgId(),
            "flag", message.getFlag(),
            "reconsumeTimes", message.getReconsumeTimes(),
            "born", message.getBornTimestamp(),
            "stored", message.getStoreTimestamp(),
            "received", System.currentTimeMillis(),
            "size", body.length,
            "sha256", hex(MessageDigest.getInstance("SHA-256").digest(body)),
            "properties", new TreeMap<>(message.getProperties()));
    }

    /** What to do with a line of stdin. */
    interface Order {
        void obey(String line) throws Exception;
    }

    /** Returns at the first line {@code stop} of stdin, or at its end. */
    static void awaitStop() throws Exception {
        eachOrder(line -> flush());
    }

    static void eachOrder(Order order) throws Exception {
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            order.obey(line);
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(bytes.length * 2);
        for (byte one : bytes) {
            text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return text.toString();
    }

    static byte[] bytes(String hex) {
        byte[] result = new byte[hex.length() / 2];
        for (int i = 0; i < result.length; i++) {
            result[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return result;
    }
}
