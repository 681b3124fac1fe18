package gantrymq.interop;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Shares queues out by the client's own strategies: a line of JSON each, an answer each, {@code broker/queue}. */
final class Allocate {
    private Allocate() {
    }

    /** Queues are {@code broker/queue} of topic T; a room is what stands before the @ of a name. */
    public static final class Order {
        public String strategy;
        public List<String> queues;
        public List<String> members;
        public String me;
        public List<String> arguments;
        public int nodes;
    }

    static void run() throws Exception {
        Lines.eachOrder(line -> {
            Order order = RemotingSerializable.fromJson(line, Order.class);
            List<String> mine = new ArrayList<>();
            for (MessageQueue queue : strategy(order).allocate("g", order.me, queues(order.queues), order.members)) {
                mine.add(queue.getBrokerName() + "/" + queue.getQueueId());
            }
            Lines.print("mine", mine);
            Lines.flush();
        });
    }

    private static List<MessageQueue> queues(List<String> names) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String name : names) {
            int at = name.lastIndexOf('/');
            queues.add(new MessageQueue("T", name.substring(0, at), Integer.parseInt(name.substring(at + 1))));
        }
        return queues;
    }

    private static AllocateMessageQueueStrategy strategy(Order order) {
        switch (order.strategy) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash(order.nodes);
            case "config":
                AllocateMessageQueueByConfig fixed = new AllocateMessageQueueByConfig();
                fixed.setMessageQueueList(queues(order.arguments));
                return fixed;
            case "machine_room":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(order.arguments));
                return rooms;
            case "nearby":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(),
                    new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return queue.getBrokerName().split("@")[0];
                        }

                        @Override
                        public String consumerDeployIn(String member) {
                            return member.split("@")[0];
                        }
                    });
            default:
                throw new IllegalArgumentException("unknown strategy " + order.strategy);
        }
    }
}
