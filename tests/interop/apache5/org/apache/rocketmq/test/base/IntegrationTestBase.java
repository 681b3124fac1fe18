package org.apache.rocketmq.test.base;

import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/**
 * Points the integration tests of RocketMQ 5 at servers that run already.
 *
 * <p>The tests' own class of this name starts RocketMQ's servers in the JVM of the tests. {@code BaseConf} only asks
 * the servers for their names and ports, and the brokers for the routes that they read. So these serve nothing, and
 * carry the names of the system under test: {@code gantrymq.broker} with a number.
 */
public class IntegrationTestBase {
    private static final AtomicInteger COUNT = new AtomicInteger();

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig port = new NettyServerConfig();
        port.setListenPort(Integer.getInteger("gantrymq.nameserver.port"));
        return new NamesrvController(new NamesrvConfig(), port);
    }

    public static BrokerController createAndStartBroker(String nameserver) {
        BrokerConfig names = new BrokerConfig();
        names.setBrokerName(System.getProperty("gantrymq.broker") + "-" + COUNT.getAndIncrement());
        names.setBrokerClusterName(System.getProperty("gantrymq.cluster"));
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(System.getProperty("java.io.tmpdir"));
        BrokerController broker = new BrokerController(names, new NettyServerConfig(), new NettyClientConfig(), store);
        broker.getBrokerOuterAPI().updateNameServerAddressList(nameserver);
        broker.getBrokerOuterAPI().start();
        return broker;
    }

    public static void initMQAdmin(String nameserver) {
        try {
            MQAdminTestUtils.startAdmin(nameserver);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, CQType type) {
        return MQAdminTestUtils.createTopic(nameserver, cluster, topic, 8, Map.of());
    }

    public static boolean initTopic(String topic, String nameserver, String cluster, TopicMessageType type) {
        return initTopic(topic, nameserver, cluster, CQType.SimpleCQ);
    }
}
