// Drives ali-ons, RocketMQ's client for Node: `produce` and `push`, arguments name=value, answers as JSON lines on stdout.
'use strict';

const crypto = require('crypto');
const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const TAGS = ['TagA', 'TagB', 'TagC', '标签'];
const SIZES = [10, 100, 1000, 5000, 64, 333];
const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: console.error, error: console.error };

// Only looks up name servers by URL, which no test does; the client insists on having one.
const httpclient = { request: async url => { throw new Error(`no HTTP here: ${url}`); } };

const print = line => process.stdout.write(JSON.stringify(line) + '\n');

// The message that a seed and an index stand for, as support.content makes it.
function content(topic, seed, index) {
  const start = Buffer.from(`${seed}-${index}|`);
  const body = Buffer.alloc(Math.max(SIZES[index % SIZES.length], start.length));
  for (let k = 0; k < body.length; k++) {
    body[k] = k < start.length ? start[k] : (seed * 131 + index * 31 + k * 7 + (k >> 8)) & 0xff;
  }
  const message = new Message(topic, TAGS[index % TAGS.length], body);
  message.keys = [`key-${seed}-${index}`].concat(index % 3 ? [] : [`third-${index}`]);
  Object.assign(message.properties, { index: String(index), greeting: 'grüße 世界 😀' });
  if (index % 5 === 0) message.properties.long = 'x'.repeat(200);
  return message;
}

async function produce({ namesrv, topic, seed, count }) {
  const producer = new Producer({ nameSrv: namesrv, producerGroup: 'interop-node-producer', httpclient, logger });
  await producer.ready();
  for (let index = 0; index < Number(count); index++) {
    const result = await producer.send(content(topic, Number(seed), index));
    const queue = result.messageQueue;
    print({
      event: 'sent', index, count: 1, status: result.sendStatus, msgId: result.msgId, offsetMsgId: result.msgId,
      broker: queue.brokerName, queueId: Number(queue.queueId), queueOffset: Number(result.queueOffset),
    });
  }
  await producer.close();
  print({ event: 'done' });
}

// With `refuse=N` each message is sent back until it has come N times.
async function push({ namesrv, topic, group, tags, refuse }) {
  const consumer = new Consumer({
    nameSrv: namesrv, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', rebalanceInterval: 1000,
    pollNameServerInteval: 1000, heartbeatBrokerInterval: 1000, httpclient, logger,
  });
  consumer.on('error', error => console.error(error));
  await consumer.ready();
  print({ event: 'started' });
  consumer.subscribe(topic, tags || '*', async message => {
    print({
      event: 'message', topic, broker: '', queueId: message.queueId, queueOffset: Number(message.queueOffset),
      msgId: message.msgId, reconsumeTimes: message.reconsumeTimes, size: message.body.length,
      sha256: crypto.createHash('sha256').update(message.body).digest('hex'), properties: message.properties,
    });
    return message.reconsumeTimes < Number(refuse || 0) ? Consumer.ACTION_RETRY : undefined;
  });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === 'stop') break;
  }
  await consumer.close();
  print({ event: 'stopped' });
}

const options = Object.fromEntries(process.argv.slice(3).map(text => {
  const at = text.indexOf('=');
  return [text.slice(0, at), text.slice(at + 1)];
}));
const command = { produce, push }[process.argv[2]];
command(options).then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
