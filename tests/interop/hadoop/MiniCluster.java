import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS with one datanode, and YARN with two node managers if the second argument is "yarn". The first one is a folder:
 * it gets all files of the cluster, and the folder conf for its clients. Prints one line when it serves, and ends
 * with its standard input.
 */
public final class MiniCluster {
    private MiniCluster() {
    }

    public static void main(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        Configuration settings = new YarnConfiguration();
        settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(folder, "hdfs").getPath());
        MiniDFSCluster hdfs = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
        hdfs.waitActive();
        Configuration client = hdfs.getConfiguration(0);
        MiniYARNCluster yarn = null;
        if (arguments.length > 1 && arguments[1].equals("yarn")) {
            client.setInt(YarnConfiguration.NM_PMEM_MB, 3072);
            client.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
            client.set("yarn.scheduler.capacity.root.queues", "default");
            client.set("yarn.scheduler.capacity.root.default.capacity", "100");
            client.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
            // The virtual memory of a JVM says nothing of what it uses.
            client.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
            // A machine whose disk is nine tenths full would run no containers.
            client.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 100);
            // It stands for a cluster of its own: its containers get none of the variables of this process.
            client.set(YarnConfiguration.NM_ENV_WHITELIST, "JAVA_HOME");
            yarn = new MiniYARNCluster("yarn", 2, 1, 1);
            yarn.init(client);
            yarn.start();
            yarn.waitForNodeManagersToConnect(60_000);
            client = yarn.getConfig();
        }
        client.unset("net.topology.node.switch.mapping.impl"); // a class that only this process has
        File conf = new File(folder, "conf");
        conf.mkdirs();
        // Each file is read after the defaults of its part, and would lose to those of a later one.
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}) {
            try (OutputStream file = new FileOutputStream(new File(conf, name))) {
                client.writeXml(file);
            }
        }
        System.out.println("{\"event\": \"started\", \"url\": \"" + hdfs.getURI() + "\"}");
        while (System.in.read() >= 0) {
            // its parent has not ended
        }
        if (yarn != null) {
            yarn.stop(); // ends containers that still run
        }
        hdfs.shutdown();
        System.exit(0);
    }
}
