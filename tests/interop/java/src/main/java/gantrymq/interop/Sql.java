package gantrymq.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Evaluates SQL92 expressions with the broker's own evaluator: a line of JSON each, an answer each. */
final class Sql {
    private Sql() {
    }

    /** An expression, and the properties of some messages. */
    public static final class Order {
        public String expression;
        public List<LinkedHashMap<String, String>> messages;
    }

    static void run() throws Exception {
        Lines.eachOrder(line -> {
            Order order = RemotingSerializable.fromJson(line, Order.class);
            List<String> answers = new ArrayList<>();
            try {
                Expression compiled = SelectorParser.parse(order.expression);
                for (Map<String, String> properties : order.messages) {
                    answers.add(evaluate(compiled, properties));
                }
                Lines.print("answers", answers);
            } catch (MQFilterException refused) {
                Lines.print("refused", true);
            }
            Lines.flush();
        });
    }

    private static String evaluate(Expression compiled, Map<String, String> properties) {
        try {
            return String.valueOf(compiled.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new LinkedHashMap<>(properties);
                }
            }));
        } catch (Exception failed) {
            return "failed";
        }
    }
}
