"""The ``mqadmin`` calls that are compared, in order, because some change the state for later ones."""

from __future__ import annotations

from support.mqadmin import CONSUMERS, PRODUCERS, TOPIC, TRACES, Case

NUMBER = r"\b\d+\b"
MEASURED = r"\b\d+\.\d+\b"
TOOL_GROUP = r"\bTOOLS_CONSUMER\b"
"""The consumer group of the tool: a broker knows it once a command has run for so long that it sends a heartbeat."""
FEATURE_TOPICS = (r"\b(SCHEDULE_TOPIC_XXXX|RMQ_SYS_TRANS\w+|TRANS_CHECK_MAX_TIME_TOPIC|rmq_sys_\w+)\b", TOOL_GROUP)
"""Topics of features that a broker may lack, and of the tool; none of them is a user's."""
OWN_MEASURES = (
    r"commitLogDirCapacity *: .*",
    r"Capacity *: *\d+",
    r"DiskRatio\S* *: *[\d.]+",
    r"earliestMessageTimeStamp *: .*",
    r"TimeMax *: \d+",
    r"putLatency\d+ *: .*",
    r"\bruntime *: .*",
    r"Tps *:.*",
)
"""Measurements of each broker and its disk, and queue capacities. RocketMQ reports -1 for the earliest message of a
short log."""
NEWER = (
    "getTransferred",
    "openTransactions",
    "transactionStrategy",
    "brokerActive",
    "brokerRun",
    "brokerSettled",
    "httpAddress",
    "notReady",
)
"""Keys of mqadmin 5.x, and keys of ours that RocketMQ does not have."""
METRICS = (r'(?<=Ratio": )"[\d.]+"', r'(?<=cpuNum": )"\d+"', r"(?<=Tps\": )[\d.]+")
VERSIONS = (r'(?<="counter": )\d+',)
"""Version counters of tables; ours differ from the start."""

PREPARE = (
    Case("updateTopic", f"updateTopic -n {{ns}} -b {{broker}} -t {TOPIC} -r 4 -w 4"),
    Case("updateTopic-cluster", "updateTopic -n {ns} -c DefaultCluster -t spare -r 2 -w 2"),
    Case("updateTopic-order", "updateTopic -n {ns} -b {broker} -t ordered -r 2 -w 2 -o true"),
    Case("updateTopic-illegal", "updateTopic -n {ns} -b {broker} -t bad!name -r 2 -w 2"),
    Case("updateSubGroup", f"updateSubGroup -n {{ns}} -b {{broker}} -g {CONSUMERS} -r 5"),
    Case("updateSubGroup-cluster", "updateSubGroup -n {ns} -c DefaultCluster -g spares -s true"),
)
"""Cases before there are messages and clients."""

READS = (
    Case("clusterList", "clusterList -n {ns}", (MEASURED, r"\d+,\d+ms", r"\d+\(\d+\)")),
    Case("clusterList-more", "clusterList -n {ns} -m"),
    Case("topicList", "topicList -n {ns}", drops=FEATURE_TOPICS, by_line=True),
    Case("topicList-cluster", "topicList -n {ns} -c", drops=FEATURE_TOPICS, by_line=True),
    Case("topicRoute", f"topicRoute -n {{ns}} -t {TOPIC}", by_line=True),
    Case("topicRoute-list", f"topicRoute -n {{ns}} -t {TOPIC} -l"),
    Case("topicRoute-unknown", "topicRoute -n {ns} -t nobody"),
    Case("topicStatus", f"topicStatus -n {{ns}} -t {TOPIC}"),
    Case("topicStatus-unknown", "topicStatus -n {ns} -t nobody"),
    Case("topicClusterList", f"topicClusterList -n {{ns}} -t {TOPIC}"),
    Case("allocateMQ", f"allocateMQ -n {{ns}} -t {TOPIC} -i 10.0.0.1,10.0.0.2", by_line=True),
    Case("brokerStatus", "brokerStatus -n {ns} -b {broker}", OWN_MEASURES, NEWER),
    Case("brokerStatus-cluster", "brokerStatus -n {ns} -c DefaultCluster", OWN_MEASURES, NEWER),
    Case("brokerConsumeStats", "brokerConsumeStats -n {ns} -b {broker}", by_line=True),
    Case("getBrokerConfig", "getBrokerConfig -n {ns} -b {broker}", by_line=True),
    Case("queryMsgById", "queryMsgById -n {ns} -i {msg_id}"),
    Case(
        "queryMsgById-consumer",
        f"queryMsgById -n {{ns}} -i {{msg_id}} -g {CONSUMERS} -d {{consumer}}",
        (r"spentTimeMills=\d+",),
    ),
    Case("queryMsgByKey", f"queryMsgByKey -n {{ns}} -t {TOPIC} -k key-7"),
    Case("queryMsgByUniqueKey", f"queryMsgByUniqueKey -n {{ns}} -t {TOPIC} -i {{unique_id}}"),
    Case("queryMsgByOffset", f"queryMsgByOffset -n {{ns}} -t {TOPIC} -b broker-a -i 1 -o 3"),
    Case("printMsg", f"printMsg -n {{ns}} -t {TOPIC} -d true", by_line=True),
    Case("printMsg-tag", f"printMsg -n {{ns}} -t {TOPIC} -s red -d true", by_line=True),
    Case("printMsgByQueue", f"printMsgByQueue -n {{ns}} -t {TOPIC} -a broker-a -i 2 -p true -d true"),
    Case("printMsgByQueue-count", f"printMsgByQueue -n {{ns}} -t {TOPIC} -a broker-a -i 2 -f true"),
    Case("consumeMessage", f"consumeMessage -n {{ns}} -t {TOPIC} -b broker-a -i 1 -o 2 -c 5"),
    Case("consumeMessage-group", f"consumeMessage -n {{ns}} -t {TOPIC} -g tools -c 3", by_line=True),
    Case("producerConnection", f"producerConnection -n {{ns}} -g {PRODUCERS} -t {TOPIC}"),
    Case("producerConnection-unknown", f"producerConnection -n {{ns}} -g nobody -t {TOPIC}"),
    Case("producer", "producer -n {ns} -b {broker}"),
    Case("consumerConnection", f"consumerConnection -n {{ns}} -g {CONSUMERS}", (r"\b\d{16,19}\b",), by_line=True),
    Case("consumerConnection-broker", f"consumerConnection -n {{ns}} -g {CONSUMERS} -b {{broker}}", by_line=True),
    Case("consumerConnection-unknown", "consumerConnection -n {ns} -g nobody"),
    Case("consumerProgress", f"consumerProgress -n {{ns}} -g {CONSUMERS}", (MEASURED,), by_line=True),
    Case("consumerProgress-clients", f"consumerProgress -n {{ns}} -g {CONSUMERS} -s true", (MEASURED,), by_line=True),
    Case("consumerProgress-all", "consumerProgress -n {ns}", (r"(?<=CLUSTERING) +\d+",), (TOOL_GROUP,), by_line=True),
    Case("consumerStatus", f"consumerStatus -n {{ns}} -g {CONSUMERS}"),
    Case(
        "consumerStatus-client",
        f"consumerStatus -n {{ns}} -g {CONSUMERS} -i {{consumer}}",
        (MEASURED, r"Timestamp=\d+"),
    ),
    Case(
        "consumerStatus-stacks",
        f"consumerStatus -n {{ns}} -g {CONSUMERS} -i {{consumer}} -s",
        (MEASURED, r"(?s)#Consumer jstack.*"),
    ),
    Case("getConsumerConfig", f"getConsumerConfig -n {{ns}} -g {CONSUMERS}"),
    Case("getNamesrvConfig", "getNamesrvConfig -n {ns}", by_line=True),
    Case("queryCq", f"queryCq -n {{ns}} -t {TOPIC} -q 1 -i 2 -c 3 -b {{broker}}"),
    Case("queryCq-group", f"queryCq -n {{ns}} -t {TOPIC} -q 1 -i 2 -c 3 -b {{broker}} -g {CONSUMERS}"),
    Case("queryCq-unknown", f"queryCq -n {{ns}} -t {TOPIC} -q 9 -i 0 -c 3 -b {{broker}}"),
    Case("statsAll", "statsAll -n {ns}", (MEASURED,), FEATURE_TOPICS, by_line=True),
    Case("statsAll-topic", f"statsAll -n {{ns}} -t {TOPIC}", (MEASURED,)),
    Case(
        "exportMetadata",
        "exportMetadata -n {ns} -c DefaultCluster -f {folder}/export",
        VERSIONS,
        written=("export/metadata.json",),
    ),
    Case(
        "exportMetadata-topics",
        "exportMetadata -n {ns} -b {broker} -t -f {folder}/topics",
        VERSIONS,
        written=("topics/topic.json",),
    ),
    Case(
        "exportConfigs", "exportConfigs -n {ns} -c DefaultCluster -f {folder}/export", written=("export/configs.json",)
    ),
    Case(
        "exportMetrics",
        "exportMetrics -n {ns} -c DefaultCluster -f {folder}/export",
        METRICS,
        written=("export/metrics.json",),
    ),
)
"""Cases that change nothing."""

CHANGES = (
    Case("queryMsgTraceById", f"queryMsgTraceById -n {{ns}} -i {{unique_id}} -t {TRACES}"),
    Case("queryMsgTraceById-unknown", f"queryMsgTraceById -n {{ns}} -i nobody -t {TRACES}"),
    Case("updateBrokerConfig", "updateBrokerConfig -n {ns} -b {broker} -k autoCreateTopicEnable -v true"),
    Case("updateBrokerConfig-cluster", "updateBrokerConfig -n {ns} -c DefaultCluster -k defaultTopicQueueNums -v 8"),
    Case("updateBrokerConfig-refused", "updateBrokerConfig -n {ns} -b {broker} -k maxMessageSize -v 8192"),
    Case("updateTopicPerm", f"updateTopicPerm -n {{ns}} -b {{broker}} -t {TOPIC} -p 4"),
    Case("updateTopicPerm-back", f"updateTopicPerm -n {{ns}} -c DefaultCluster -t {TOPIC} -p 6"),
    Case("sendMessage", f"sendMessage -n {{ns}} -t {TOPIC} -p hello -k k1 -c tagged -b broker-a -i 0"),
    Case("sendMsgStatus", "sendMsgStatus -n {ns} -b broker-a -s 10 -c 3", (r"rt=\d+ms",)),
    Case("checkMsgSendRT", f"checkMsgSendRT -n {{ns}} -t {TOPIC} -a 3 -s 10", (NUMBER,)),
    Case("clusterRT", "clusterRT -n {ns} -a 3 -s 10 -i 100", (MEASURED,), seconds=6),
    Case("cloneGroupOffset", f"cloneGroupOffset -n {{ns}} -s {CONSUMERS} -d clones -t {TOPIC} -o true"),
    Case("consumerProgress-clone", "consumerProgress -n {ns} -g clones", (MEASURED,), by_line=True),
    Case("resetOffsetByTime-offline", f"resetOffsetByTime -n {{ns}} -g clones -t {TOPIC} -s now", by_line=True),
    Case("skipAccumulatedMessage", f"skipAccumulatedMessage -n {{ns}} -g {CONSUMERS} -t {TOPIC}", by_line=True),
    Case("skipAccumulatedMessage-unknown", f"skipAccumulatedMessage -n {{ns}} -g nobody -t {TOPIC}"),
    Case("updateKvConfig", "updateKvConfig -n {ns} -s space -k name -v value"),
    Case("deleteKvConfig", "deleteKvConfig -n {ns} -s space -k name"),
    Case("updateOrderConf", "updateOrderConf -n {ns} -t ordered -v broker-a:2 -m put"),
    Case("updateOrderConf-get", "updateOrderConf -n {ns} -t ordered -m get"),
    Case("updateOrderConf-delete", "updateOrderConf -n {ns} -t ordered -m delete"),
    Case("updateNamesrvConfig", "updateNamesrvConfig -n {ns} -k orderMessageEnable -v false"),
    Case("updateNamesrvConfig-refused", "updateNamesrvConfig -n {ns} -k kvConfigPath -v /tmp/elsewhere"),
    Case("wipeWritePerm", "wipeWritePerm -n {ns} -b broker-a", (r"\[broker-a\].*\d+",)),
    Case("addWritePerm", "addWritePerm -n {ns} -b broker-a", (r"\[broker-a\].*\d+",)),
    Case("cleanExpiredCQ", "cleanExpiredCQ -n {ns} -b {broker}"),
    Case("cleanUnusedTopic", "cleanUnusedTopic -n {ns} -b {broker}"),
    Case("deleteExpiredCommitLog", "deleteExpiredCommitLog -n {ns} -b {broker}"),
    Case("deleteSubGroup", "deleteSubGroup -n {ns} -b {broker} -g spares -r true"),
    Case("deleteSubGroup-cluster", "deleteSubGroup -n {ns} -c DefaultCluster -g clones"),
    Case("deleteTopic", "deleteTopic -n {ns} -c DefaultCluster -t spare"),
    Case("topicList-end", "topicList -n {ns}", drops=FEATURE_TOPICS, by_line=True),
)
"""Cases as in the manual; later ones see the changes of earlier ones."""


ACCESS = (
    Case("updateAclConfig", "updateAclConfig -n {ns} -b {broker} -a user1 -s secret12 -i PUB"),
    Case("deleteAclConfig", "deleteAclConfig -n {ns} -b {broker} -a user1"),
    Case("updateGlobalWhiteAddr", "updateGlobalWhiteAddr -n {ns} -b {broker} -g 10.0.0.1"),
    Case("clusterAclConfigVersion", "clusterAclConfigVersion -n {ns} -b {broker}"),
    Case("getAclConfig", "getAclConfig -n {ns} -b {broker}"),
)
"""Cases for brokers without access control."""

LAST = (Case("startMonitoring", "startMonitoring -n {ns}", seconds=5),)
"""A command that polls for ever and is interrupted."""

RESET = (
    Case("resetOffsetByTime", f"resetOffsetByTime -n {{ns}} -g {CONSUMERS} -t {TOPIC} -s 1000000000000", by_line=True),
)
"""The group's clients then read everything again, which takes Java's ten seconds and more."""

RAW = {
    "GET_EARLIEST_MSG_STORETIME": {"topic": TOPIC, "queueId": "1"},
    "GET_ALL_CONSUMER_OFFSET": {},
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS": {"topic": TOPIC, "group": CONSUMERS},
    "QUERY_TOPIC_CONSUME_BY_WHO": {"topic": TOPIC},
    "QUERY_CONSUME_TIME_SPAN": {"topic": TOPIC, "group": CONSUMERS},
    "QUERY_CORRECTION_OFFSET": {"topic": TOPIC, "compareGroup": CONSUMERS, "filterGroups": ""},
    "GET_SYSTEM_TOPIC_LIST_FROM_BROKER": {},
    "VIEW_BROKER_STATS_DATA": {"statsName": "TOPIC_PUT_SIZE", "statsKey": TOPIC},
    "GET_TOPIC_STATS_INFO": {"topic": "nobody"},
    "GET_CONSUME_STATS": {"consumerGroup": "nobody"},
    "GET_CONSUMER_RUNNING_INFO": {"consumerGroup": CONSUMERS, "clientId": "nobody"},
}
"""Requests that no command makes, or that one hides the answer of: their fields, by name."""

CASES = (*PREPARE, *READS, *CHANGES, *ACCESS, *RESET, *LAST)

GAPS: dict[str, str] = {
    "getBrokerConfig": "the settings are our own; those with a counterpart in RocketMQ have its names as well",
    **dict.fromkeys(
        ("updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr"),
        "without access control ours says that the request is not supported, RocketMQ tells of a null reference",
    ),
    **dict.fromkeys(
        ("clusterAclConfigVersion", "getAclConfig"),
        "without access control ours says that the request is not supported, RocketMQ lets the tool run into its "
        "time-out",
    ),
    "getNamesrvConfig": "as getBrokerConfig: four of RocketMQ's settings have a counterpart",
    "updateBrokerConfig-refused": "only an allow list of settings may change over the wire; RocketMQ takes any",
}
"""The differences and their reasons. Unlisted differences and obsolete entries fail."""
