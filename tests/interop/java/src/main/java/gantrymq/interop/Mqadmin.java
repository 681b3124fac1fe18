package gantrymq.interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Many mqadmin commands in one process: each line of stdin is how many seconds a command may take and a JSON list of
 * its arguments, each answer one JSON line with what the command printed.
 */
final class Mqadmin {
    private Mqadmin() {
    }

    static void run() throws Exception {
        Lines.event("started"); // before the streams are replaced: Lines keeps the real one
        Lines.eachOrder(Mqadmin::obey);
        Lines.event("done");
    }

    private static void obey(String line) throws Exception {
        int space = line.indexOf(' ');
        long seconds = Long.parseLong(line.substring(0, space));
        String[] arguments = RemotingSerializable.fromJson(line.substring(space + 1), String[].class);
        forgetCommands();
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        Thread thread = new Thread(() -> MQAdminStartup.main0(arguments, null), "mqadmin");
        thread.setDaemon(true);
        try {
            thread.start();
            thread.join(seconds * 1000);
            if (thread.isAlive()) {
                thread.interrupt(); // some commands go on for ever
                thread.join(5_000);
                both.println("mqadmin did not end in " + seconds + " s");
            }
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        Lines.print("event", "printed", "text", printed.toString(StandardCharsets.UTF_8));
        Lines.flush();
    }

    /** The tool keeps its command objects, and some of those keep a client that they have shut down. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
