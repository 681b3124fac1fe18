package org.apache.rocketmq.test.base;

import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Points RocketMQ's integration tests at servers that run already.
 *
 * <p>The tests' own class of this name starts RocketMQ's servers in the JVM of the tests. {@code BaseConf} only asks
 * the servers for their names and ports, so these are never started, and carry those of the system under test.
 */
public class IntegrationTestBase {
    private static final long ROUTE_SECONDS = 30;

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig port = new NettyServerConfig();
        port.setListenPort(Integer.getInteger("gantrymq.nameserver.port"));
        return new NamesrvController(new NamesrvConfig(), port);
    }

    public static BrokerController createAndStartBroker(String nameserver) {
        BrokerConfig names = new BrokerConfig();
        names.setBrokerName(System.getProperty("gantrymq.broker"));
        names.setBrokerClusterName(System.getProperty("gantrymq.cluster"));
        return new BrokerController(names, new NettyServerConfig(), new NettyClientConfig(), new MessageStoreConfig());
    }

    public static boolean initTopic(String topic, String nameserver, String cluster) {
        MQAdmin.run("updateTopic", "-n", nameserver, "-c", cluster, "-t", topic, "-r", "8", "-w", "8");
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setInstanceName("routes-" + topic);
        admin.setNamesrvAddr(nameserver);
        try {
            admin.start();
            long end = System.nanoTime() + ROUTE_SECONDS * 1_000_000_000L;
            while (!hasRoute(admin, topic)) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("no route for " + topic);
                }
                Thread.sleep(20);
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        } finally {
            admin.shutdown();
        }
        return true;
    }

    private static boolean hasRoute(DefaultMQAdminExt admin, String topic) {
        try {
            admin.examineTopicRouteInfo(topic);
            return true;
        } catch (Exception error) {
            return false;
        }
    }
}
