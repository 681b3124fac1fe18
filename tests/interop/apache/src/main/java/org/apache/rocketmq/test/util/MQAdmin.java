package org.apache.rocketmq.test.util;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Creates groups for RocketMQ's integration tests with {@code mqadmin}, whose commands are the same in each release.
 *
 * <p>The tests' own class of this name calls classes that 5.x has in other packages.
 */
public class MQAdmin {
    public static boolean createSub(String nameserver, String cluster, String group) {
        run("updateSubGroup", "-n", nameserver, "-c", cluster, "-g", group);
        return true;
    }

    public static void run(String... arguments) {
        MQAdminStartup.main0(arguments, null);
    }
}
