package gantrymq.interop;

import java.io.BufferedReader;
import java.io.OutputStream;

/** One program, several sub-commands; arguments are {@code name=value}, answers are JSON lines on stdout. */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) {
        int code = 0;
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        Lines.flush();
        System.exit(code); // the clients' own threads must not keep the process
    }

    /** One command of a process that runs many: it reads and writes there. */
    static void run(String[] arguments, BufferedReader input, OutputStream output) throws Exception {
        Lines.connect(input, output);
        try {
            run(arguments);
        } finally {
            Lines.flush();
        }
    }

    private static void run(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        switch (arguments[0]) {
            case "produce":
                Produce.run(options);
                break;
            case "recall":
                Recall.run(options);
                break;
            case "request":
                Request.run(options);
                break;
            case "respond":
                Respond.run(options);
                break;
            case "transact":
                Transact.run(options);
                break;
            case "push":
                PushConsume.run(options);
                break;
            case "retry-push":
                RetryConsume.run(options);
                break;
            case "pull":
                Pull.run(options);
                break;
            case "lite-pull":
                LitePullConsume.run(options);
                break;
            case "create-topic":
                Admin.createTopic(options);
                break;
            case "cluster":
                Admin.cluster(options);
                break;
            case "mqadmin":
                Mqadmin.run();
                break;
            case "stage":
                Stage.run(options);
                break;
            case "allocate":
                Allocate.run();
                break;
            case "sql":
                Sql.run();
                break;
            case "host":
                Host.run();
                break;
            case "golden":
                Golden.run();
                break;
            default:
                throw new IllegalArgumentException("unknown command " + arguments[0]);
        }
    }
}
