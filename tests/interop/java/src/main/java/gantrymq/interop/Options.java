package gantrymq.interop;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** The {@code name=value} arguments of a sub-command. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] arguments) {
        for (int i = 1; i < arguments.length; i++) {
            int at = arguments[i].indexOf('=');
            if (at < 0) {
                throw new IllegalArgumentException("not name=value: " + arguments[i]);
            }
            values.put(arguments[i].substring(0, at), arguments[i].substring(at + 1));
        }
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing " + name);
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    /** Signs with {@code accessKey}, {@code secretKey} and {@code securityToken}; null without them. */
    RPCHook signer() {
        String key = text("accessKey", "");
        return key.isEmpty() ? null : new AclClientRPCHook(
            new SessionCredentials(key, text("secretKey"), text("securityToken", null)));
    }

    /** Sets the nameserver, and TLS where {@code tls} is true. */
    void connect(ClientConfig client) {
        client.setNamesrvAddr(text("namesrv"));
        client.setUseTLS(text("tls", "false").equals("true"));
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }
}
