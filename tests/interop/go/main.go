// Drives rocketmq-client-go: `produce`, `push`, `request` and `respond`, arguments name=value, answers as JSON lines on stdout.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	tags  = []string{"TagA", "TagB", "TagC", "标签"}
	sizes = []int{10, 100, 1000, 5000, 64, 333}
	guard sync.Mutex
)

func printLine(line map[string]any) {
	guard.Lock()
	defer guard.Unlock()
	text, err := json.Marshal(line)
	check(err)
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// content is the message that a seed and an index stand for, as support.content makes it.
func content(topic string, seed, index int) *primitive.Message {
	start := fmt.Sprintf("%d-%d|", seed, index)
	body := make([]byte, max(sizes[index%len(sizes)], len(start)))
	for k := range body {
		if k < len(start) {
			body[k] = start[k]
		} else {
			body[k] = byte(seed*131 + index*31 + k*7 + k>>8)
		}
	}
	message := primitive.NewMessage(topic, body).WithTag(tags[index%len(tags)])
	keys := []string{fmt.Sprintf("key-%d-%d", seed, index)}
	if index%3 == 0 {
		keys = append(keys, fmt.Sprintf("third-%d", index))
	}
	message.WithKeys(keys)
	message.WithProperty("index", strconv.Itoa(index))
	message.WithProperty("greeting", "grüße 世界 😀")
	if index%5 == 0 {
		message.WithProperty("long", strings.Repeat("x", 200))
	}
	return message
}

// traces go to the same cluster.
func traces(options map[string]string) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName: "interop-go-traces", Access: primitive.Local,
		Resolver: primitive.NewPassthroughResolver([]string{options["namesrv"]})}
}

func produce(options map[string]string) {
	settings := []producer.Option{
		producer.WithNameServer([]string{options["namesrv"]}), producer.WithGroupName("interop-go-producer")}
	if options["trace"] == "true" {
		settings = append(settings, producer.WithTrace(traces(options)))
	}
	maker, err := rocketmq.NewProducer(settings...)
	check(err)
	check(maker.Start())
	seed, count := number(options, "seed"), number(options, "count")
	for index := 0; index < count; index++ {
		result, err := maker.SendSync(context.Background(), content(options["topic"], seed, index))
		check(err)
		printLine(map[string]any{
			"event": "sent", "index": index, "count": 1, "status": int(result.Status), "msgId": result.MsgID,
			"offsetMsgId": result.OffsetMsgID, "broker": result.MessageQueue.BrokerName,
			"queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset})
	}
	if options["hold"] == "true" { // traces leave later, and Shutdown does not wait for them
		printLine(map[string]any{"event": "held"})
		orders := bufio.NewScanner(os.Stdin)
		for orders.Scan() && orders.Text() != "stop" {
		}
	}
	check(maker.Shutdown())
	printLine(map[string]any{"event": "done"})
}

func push(options map[string]string) {
	selector := consumer.MessageSelector{}
	if expression := options["tags"]; expression != "" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	}
	settings := []consumer.Option{
		consumer.WithNameServer([]string{options["namesrv"]}), consumer.WithGroupName(options["group"]),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}
	if options["trace"] == "true" {
		settings = append(settings, consumer.WithTrace(traces(options)))
	}
	eater, err := rocketmq.NewPushConsumer(settings...)
	check(err)
	check(eater.Subscribe(options["topic"], selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				sum := sha256.Sum256(message.Body)
				printLine(map[string]any{
					"event": "message", "topic": message.Topic, "broker": message.Queue.BrokerName,
					"queueId": message.Queue.QueueId, "queueOffset": message.QueueOffset, "msgId": message.MsgId,
					"reconsumeTimes": message.ReconsumeTimes, "size": len(message.Body),
					"sha256": hex.EncodeToString(sum[:]), "properties": message.GetProperties()})
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(eater.Start())
	printLine(map[string]any{"event": "started"})
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() && orders.Text() != "stop" {
	}
	check(eater.Shutdown())
	printLine(map[string]any{"event": "stopped"})
}

// request makes requests. Each line of stdin is `mode first count timeout`: so many requests with the content of their
// index, `sync` one after the other, `async` all at once; the timeout is in milliseconds.
func request(options map[string]string) {
	asker, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{options["namesrv"]}), producer.WithGroupName(options["group"]),
		producer.WithInstanceName(options["group"]))
	check(err)
	check(asker.Start())
	printLine(map[string]any{"event": "started"})
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() && orders.Text() != "stop" {
		words := strings.Fields(orders.Text())
		first, err := strconv.Atoi(words[1])
		check(err)
		count, err := strconv.Atoi(words[2])
		check(err)
		timeout, err := time.ParseDuration(words[3] + "ms")
		check(err)
		var open sync.WaitGroup
		for index := first; index < first+count; index++ {
			message := content(options["topic"], number(options, "seed"), index)
			index := index
			var once sync.Once // the client calls back again when it forgets the request
			done := func(_ context.Context, reply *primitive.Message, err error) {
				once.Do(func() {
					if err != nil {
						printLine(map[string]any{"event": "failed", "index": index, "error": err.Error()})
					} else {
						printLine(map[string]any{
							"event": "replied", "index": index, "body": hex.EncodeToString(reply.Body),
							"topic": reply.Topic, "properties": reply.GetProperties()})
					}
					open.Done()
				})
			}
			open.Add(1)
			if words[0] == "sync" {
				reply, err := asker.Request(context.Background(), timeout, message)
				done(context.Background(), reply, err)
			} else {
				check(asker.RequestAsync(context.Background(), timeout, done, message))
			}
		}
		open.Wait()
		printLine(map[string]any{"event": "obeyed"})
	}
	check(asker.Shutdown())
	printLine(map[string]any{"event": "stopped"})
}

// respond replies to each request with its body back to front.
func respond(options map[string]string) {
	replier, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{options["namesrv"]}), producer.WithGroupName(options["group"]+"-replies"),
		producer.WithInstanceName(options["group"]+"-replies"))
	check(err)
	check(replier.Start())
	eater, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{options["namesrv"]}), consumer.WithGroupName(options["group"]),
		consumer.WithInstance(options["group"]), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(eater.Subscribe(options["topic"], consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				body := make([]byte, len(message.Body))
				for k := range body {
					body[k] = message.Body[len(body)-1-k]
				}
				// v2.1.2 reads properties out of the body that it is given, and leaves the reply without one.
				reply, err := consumer.CreateReplyMessage(message, nil)
				check(err)
				reply.Body = body
				index, err := strconv.Atoi(message.GetProperty("index"))
				check(err)
				reply.WithProperty("index", strconv.Itoa(index))
				result, err := replier.SendSync(context.Background(), reply)
				if err != nil {
					printLine(map[string]any{"event": "refused", "index": index, "code": -1, "remark": err.Error()})
					continue
				}
				printLine(map[string]any{
					"event": "sent", "index": index, "status": int(result.Status), "offsetMsgId": result.OffsetMsgID,
					"queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset,
					"broker": result.MessageQueue.BrokerName, "topic": reply.Topic})
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(eater.Start())
	printLine(map[string]any{"event": "started"})
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() && orders.Text() != "stop" {
	}
	check(eater.Shutdown())
	check(replier.Shutdown())
	printLine(map[string]any{"event": "stopped"})
}

func number(options map[string]string, name string) int {
	value, err := strconv.Atoi(options[name])
	check(err)
	return value
}

func main() {
	rlog.SetLogLevel("error")
	options := map[string]string{}
	for _, argument := range os.Args[2:] {
		name, value, _ := strings.Cut(argument, "=")
		options[name] = value
	}
	switch os.Args[1] {
	case "produce":
		produce(options)
	case "request":
		request(options)
	case "respond":
		respond(options)
	case "push":
		push(options)
	default:
		fmt.Fprintln(os.Stderr, "unknown command", os.Args[1])
		os.Exit(2)
	}
}
