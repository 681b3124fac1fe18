package gantrymq.interop;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Reads what to encode as JSON lines on stdin, prints the bytes that the jars make of it, in hex, a line each. */
final class Golden {
    private Golden() {
    }

    /** One order; which fields are used depends on {@code what}. */
    public static final class Order {
        public String what;
        public String kind = "JSON";
        public int code;
        public int opaque;
        public int version;
        public boolean oneway;
        public boolean response;
        public String remark;
        public String type;
        public Map<String, Object> fields;
        public String body = "";
        public String text;
        public boolean compressed;
        public List<Map<String, Object>> messages = new ArrayList<>();
    }

    static void run() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Order order = RemotingSerializable.fromJson(line, Order.class);
            Lines.print("event", "golden", "hex", Lines.hex(encode(order)));
        }
        Lines.event("done");
    }

    private static byte[] encode(Order order) throws Exception {
        switch (order.what) {
            case "frame":
                return frame(order);
            case "body":
                return RemotingSerializable.encode(typed(order));
            case "register-body":
                Object body = typed(order);
                return (byte[]) body.getClass().getMethod("encode", boolean.class).invoke(body, order.compressed);
            case "record":
                return record(order.fields);
            case "batch":
                List<Message> batch = new ArrayList<>();
                for (Map<String, Object> fields : order.messages) {
                    batch.add(filled(new Message(), fields));
                }
                return MessageDecoder.encodeMessages(batch);
            case "hash":
                return ByteBuffer.allocate(4).putInt(order.text.hashCode()).array();
            default:
                throw new IllegalArgumentException("unknown order " + order.what);
        }
    }

    /** The object of class {@code type}, whose package depends on the version, filled from {@code fields}. */
    private static Object typed(Order order) throws Exception {
        Class<?> type;
        try {
            type = Class.forName("org.apache.rocketmq.remoting.protocol." + order.type);
        } catch (ClassNotFoundException absent) {
            type = Class.forName("org.apache.rocketmq.common.protocol." + order.type);
        }
        return RemotingSerializable.fromJson(RemotingSerializable.toJson(order.fields, false), type);
    }

    private static byte[] frame(Order order) throws Exception {
        CommandCustomHeader header = order.type == null ? null : (CommandCustomHeader) typed(order);
        RemotingCommand command = RemotingCommand.createRequestCommand(order.code, header);
        command.setOpaque(order.opaque);
        command.setVersion(order.version);
        command.setRemark(order.remark);
        command.setSerializeTypeCurrentRPC(SerializeType.valueOf(order.kind));
        if (order.oneway) {
            command.markOnewayRPC();
        }
        if (order.response) {
            command.markResponseType();
        }
        command.setBody(Lines.bytes(order.body));
        ByteBuf out = Unpooled.buffer(); // as NettyEncoder does
        command.fastEncodeHeader(out);
        out.writeBytes(command.getBody());
        byte[] bytes = new byte[out.readableBytes()];
        out.readBytes(bytes);
        return bytes;
    }

    private static byte[] record(Map<String, Object> fields) throws Exception {
        MessageExt message = filled(new MessageExt(), fields);
        message.setQueueId(number(fields, "queueId"));
        message.setQueueOffset(((Number) fields.get("queueOffset")).longValue());
        message.setCommitLogOffset(((Number) fields.get("physicalOffset")).longValue());
        message.setSysFlag(number(fields, "sysFlag"));
        message.setBornTimestamp(((Number) fields.get("bornTimestamp")).longValue());
        message.setStoreTimestamp(((Number) fields.get("storeTimestamp")).longValue());
        message.setBornHost(host(fields, "bornHost"));
        message.setStoreHost(host(fields, "storeHost"));
        message.setReconsumeTimes(number(fields, "reconsumeTimes"));
        message.setPreparedTransactionOffset(number(fields, "preparedTransactionOffset"));
        message.setBodyCRC(number(fields, "bodyCrc"));
        return MessageDecoder.encode(message, false);
    }

    private static <M extends Message> M filled(M message, Map<String, Object> fields) throws Exception {
        message.setTopic((String) fields.get("topic"));
        message.setFlag(number(fields, "flag"));
        message.setBody(Lines.bytes((String) fields.get("body")));
        Map<String, String> properties = new LinkedHashMap<>();
        ((Map<?, ?>) fields.get("properties")).forEach((name, value) -> properties.put((String) name, (String) value));
        var set = Message.class.getDeclaredMethod("setProperties", Map.class);
        set.setAccessible(true);
        set.invoke(message, properties); // as they are: the public setters would reject reserved names
        return message;
    }

    private static int number(Map<String, Object> fields, String name) {
        Object value = fields.get(name);
        return value == null ? 0 : ((Number) value).intValue();
    }

    private static InetSocketAddress host(Map<String, Object> fields, String name) {
        String text = (String) fields.get(name);
        int at = text.lastIndexOf(':');
        return new InetSocketAddress(text.substring(0, at), Integer.parseInt(text.substring(at + 1)));
    }
}
