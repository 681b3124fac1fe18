package gantrymq.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Many sub-commands in one process, each over a connection of its own to a port of the loopback: the first line is a
 * JSON list of the arguments, further lines are what the command reads, answers are what it prints. At the end come
 * lines that begin with {@code !}, the trace of what it failed with, and one that begins with {@code =}, its exit code.
 *
 * <p>Each command has its own copies of this package's classes, so that it has its own input and output. Those of
 * RocketMQ are shared: a process costs a second of processor time before its first message.
 */
final class Host {
    private Host() {
    }

    static void run() throws Exception {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Lines.print("event", "listening", "port", server.getLocalPort());
        Lines.flush();
        Thread acceptor = new Thread(() -> accept(server), "acceptor");
        acceptor.setDaemon(true);
        acceptor.start();
        Lines.awaitStop();
    }

    private static void accept(ServerSocket server) {
        try {
            while (true) {
                Socket socket = server.accept();
                socket.setTcpNoDelay(true);
                new Thread(() -> serve(socket), "command").start();
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    private static void serve(Socket socket) {
        try (socket; OutputStream stream = socket.getOutputStream()) {
            PrintStream out = new PrintStream(stream, true, StandardCharsets.UTF_8);
            BufferedReader input =
                new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            String[] arguments = RemotingSerializable.fromJson(input.readLine(), String[].class);
            int code = 0;
            try {
                Class<?> main = new OwnClasses().loadClass(Main.class.getName());
                var run = main.getDeclaredMethod("run", String[].class, BufferedReader.class, OutputStream.class);
                run.setAccessible(true);
                run.invoke(null, arguments, input, stream);
            } catch (InvocationTargetException wrapped) {
                code = 1;
                StringWriter trace = new StringWriter();
                wrapped.getCause().printStackTrace(new PrintWriter(trace));
                trace.toString().lines().forEach(line -> out.println("!" + line));
            }
            out.println("=" + code);
        } catch (Exception error) {
            error.printStackTrace(); // the other end is gone
        }
    }

    /** Loads the classes of this package anew, and everything else once. */
    private static final class OwnClasses extends URLClassLoader {
        OwnClasses() {
            super(new URL[] {Host.class.getProtectionDomain().getCodeSource().getLocation()}, Host.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith(Host.class.getPackageName() + ".")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                return loaded == null ? findClass(name) : loaded;
            }
        }
    }
}
