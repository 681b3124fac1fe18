package gantrymq.interop;

import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** DefaultMQAdminExt: what the tests need to set a stage. */
final class Admin {
    private Admin() {
    }

    private static DefaultMQAdminExt start(Options options) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
        admin.setNamesrvAddr(options.text("namesrv"));
        admin.setInstanceName("interop-" + ProcessHandle.current().pid() + "-" + System.nanoTime());
        admin.start();
        return admin;
    }

    /** Creates a topic on every master that the nameserver knows. */
    static void createTopic(Options options) throws Exception {
        DefaultMQAdminExt admin = start(options);
        int queues = options.number("queues", 4);
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            TopicConfig topic = new TopicConfig(options.text("topic"), queues, queues, 6);
            admin.createAndUpdateTopicConfig(broker.getBrokerAddrs().get(0L), topic);
            Lines.print("event", "created", "broker", broker.getBrokerName());
        }
        Lines.event("done");
        admin.shutdown();
    }

    static void cluster(Options options) throws Exception {
        DefaultMQAdminExt admin = start(options);
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            Lines.print(
                "event", "broker", "name", broker.getBrokerName(), "cluster", broker.getCluster(),
                "address", broker.getBrokerAddrs().get(0L));
        }
        Lines.event("done");
        admin.shutdown();
    }
}
