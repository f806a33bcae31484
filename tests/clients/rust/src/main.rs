//! Scenarios with the official Rust client: `danube-scenarios MODULE.FUNCTION URL ARGUMENTS`.
//!
//! They are those of `tests/conformance/scenarios` of the same names, with the same arguments and results, and speak as
//! `run.py` does there: every line on stdout is JSON, {"step": ..., "value": ...} while it runs and {"result": ...} at
//! the end. A scenario that is not here answers {"missing": NAME}.

use std::collections::hash_map::DefaultHasher;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use danube_client::errors::DanubeError;
use danube_client::{
    Consumer, ConsumerOptions, DanubeClient, Producer, ProducerBuilder, ProducerOptions, SchemaType, SubType,
};
use danube_core::message::StreamMessage;
use serde_json::{json, Value};
use tokio::sync::mpsc;

type Outcome = Result<Value, DanubeError>;

const TICK: Duration = Duration::from_millis(2);

/// A consumer with its channel, and what came through it.
struct Receiver {
    consumer: Consumer,
    channel: mpsc::Receiver<StreamMessage>,
    received: Vec<StreamMessage>,
}

impl Receiver {
    async fn next(&mut self, ack: bool) -> Result<StreamMessage, DanubeError> {
        let message = self.channel.recv().await.expect("the client ended the channel");
        if ack {
            self.consumer.ack(&message).await?;
        }
        self.received.push(message.clone());
        Ok(message)
    }

    async fn take(&mut self, count: usize) -> Result<(), DanubeError> {
        for _ in 0..count {
            self.next(true).await?;
        }
        Ok(())
    }

    fn payloads(&self) -> Vec<String> {
        self.received.iter().map(text).collect()
    }
}

fn text(message: &StreamMessage) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

fn digest(data: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    format!("{:x}-{}", hasher.finish(), data.len())
}

fn builder(client: &DanubeClient, topic: &str, name: &str) -> ProducerBuilder {
    client.new_producer().with_topic(topic).with_name(name)
}

async fn create(builder: ProducerBuilder) -> Result<Producer, DanubeError> {
    let mut producer = builder.build()?;
    producer.create().await?;
    Ok(producer)
}

async fn reliable(client: &DanubeClient, topic: &str) -> Result<Producer, DanubeError> {
    create(builder(client, topic, "producer").with_reliable_dispatch()).await
}

async fn receiver(
    client: &DanubeClient,
    topic: &str,
    subscription: &str,
    name: &str,
    kind: SubType,
    filters: &[&str],
) -> Result<Receiver, DanubeError> {
    let mut consumer = client
        .new_consumer()
        .with_topic(topic)
        .with_subscription(subscription)
        .with_consumer_name(name)
        .with_subscription_type(kind)
        .with_key_filters(filters.iter().map(|one| one.to_string()).collect())
        .with_options(ConsumerOptions::new(200, 50, 200)) // patience while the broker is started again
        .build()?;
    consumer.subscribe().await?;
    let channel = consumer.receive().await?;
    Ok(Receiver { consumer, channel, received: Vec::new() })
}

async fn exclusive_receiver(client: &DanubeClient, topic: &str) -> Result<Receiver, DanubeError> {
    receiver(client, topic, "subscription", "consumer", SubType::Exclusive, &[]).await
}

/// Receive and ack until these have received `count` messages together.
async fn drain(receivers: &mut [&mut Receiver], count: usize) -> Result<(), DanubeError> {
    while receivers.iter().map(|one| one.received.len()).sum::<usize>() < count {
        let mut idle = true;
        for one in receivers.iter_mut() {
            if let Ok(message) = one.channel.try_recv() {
                one.consumer.ack(&message).await?;
                one.received.push(message);
                idle = false;
            }
        }
        if idle {
            tokio::time::sleep(TICK).await;
        }
    }
    Ok(())
}

/// Send one message after the other until every receiver got some, and forget them all.
async fn connect_all(producer: &Producer, receivers: &mut [Receiver], keyed: bool) -> Result<(), DanubeError> {
    let mut number = 0;
    while receivers.iter().any(|one| one.received.is_empty()) {
        let key = format!("warm-{number}");
        if keyed {
            producer.send_with_key(b"warm up".to_vec(), None, &key).await?;
        } else {
            producer.send(b"warm up".to_vec(), None).await?;
        }
        number += 1;
        drain(&mut receivers.iter_mut().collect::<Vec<_>>(), number).await?;
    }
    for one in receivers.iter_mut() {
        one.received.clear();
    }
    Ok(())
}

/// Return how something is refused: the name of the gRPC status.
fn status<T>(result: Result<T, DanubeError>) -> String {
    match result {
        Ok(_) => "OK".to_string(),
        Err(DanubeError::FromStatus(status)) => {
            let mut name = String::new();
            for letter in format!("{:?}", status.code()).chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            name
        }
        Err(other) => other.to_string(),
    }
}

fn reached(step: &str, value: Value) {
    println!("{}", json!({"step": step, "value": value}));
}

async fn told(word: &'static str) {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).expect("stdin");
        line
    });
    assert_eq!(line.await.expect("stdin").trim(), word);
}

// -- who gets which messages ------------------------------------------------------------------------------------------

async fn fan_out(client: &DanubeClient, topic: &str, count: usize) -> Outcome {
    let producer = reliable(client, topic).await?;
    let mut receivers = Vec::new();
    for one in 0..3 {
        let subscription = format!("subscription-{one}");
        receivers.push(receiver(client, topic, &subscription, "consumer", SubType::Exclusive, &[]).await?);
    }
    for number in 0..count {
        producer.send(number.to_string().into_bytes(), None).await?;
    }
    for one in receivers.iter_mut() {
        one.take(count).await?;
    }
    Ok(json!(receivers.iter().map(Receiver::payloads).collect::<Vec<_>>()))
}

async fn three(client: &DanubeClient, topic: &str, kind: SubType) -> Result<Vec<Receiver>, DanubeError> {
    let mut receivers = Vec::new();
    for one in 0..3 {
        let name = format!("consumer-{one}");
        receivers.push(receiver(client, topic, "subscription", &name, kind.clone(), &[]).await?);
    }
    Ok(receivers)
}

async fn round_robin(client: &DanubeClient, topic: &str, count: usize, is_reliable: bool) -> Outcome {
    let mut wanted = builder(client, topic, "producer");
    if is_reliable {
        wanted = wanted.with_reliable_dispatch();
    }
    let producer = create(wanted).await?;
    let mut receivers = three(client, topic, SubType::Shared).await?;
    connect_all(&producer, &mut receivers, false).await?;
    for number in 0..count {
        producer.send(number.to_string().into_bytes(), None).await?;
    }
    drain(&mut receivers.iter_mut().collect::<Vec<_>>(), count).await?;
    Ok(json!(receivers.iter().map(Receiver::payloads).collect::<Vec<_>>()))
}

async fn partitions(client: &DanubeClient, topic: &str, partitions: usize, count: usize) -> Outcome {
    let wanted = builder(client, topic, "producer").with_reliable_dispatch().with_partitions(partitions);
    let producer = create(wanted).await?;
    let mut exclusive = receiver(client, topic, "exclusive", "consumer", SubType::Exclusive, &[]).await?;
    let mut first = receiver(client, topic, "shared", "consumer-0", SubType::Shared, &[]).await?;
    let mut second = receiver(client, topic, "shared", "consumer-1", SubType::Shared, &[]).await?;
    for number in 0..count {
        producer.send(number.to_string().into_bytes(), None).await?;
    }
    drain(&mut [&mut exclusive], count).await?;
    drain(&mut [&mut first, &mut second], count).await?;
    let facts = |one: &Receiver| -> Vec<Value> {
        let fact = |m: &StreamMessage| json!([text(m), m.msg_id.topic_name, m.msg_id.topic_offset]);
        one.received.iter().map(fact).collect()
    };
    Ok(json!([facts(&exclusive), facts(&first), facts(&second)]))
}

async fn large_messages(client: &DanubeClient, topic: &str, count: usize, size: usize) -> Outcome {
    let producer = reliable(client, topic).await?;
    let mut exclusive = receiver(client, topic, "exclusive", "consumer", SubType::Exclusive, &[]).await?;
    let mut shared = receiver(client, topic, "shared", "consumer", SubType::Shared, &[]).await?;
    let payload = |number: usize| (0..size).map(|place| (place * (number + 7) % 251) as u8).collect::<Vec<_>>();
    let sent: Vec<Vec<u8>> = (0..count).map(payload).collect();
    for one in &sent {
        producer.send(one.clone(), None).await?;
    }
    exclusive.take(count).await?;
    shared.take(count).await?;
    let digests = |one: &Receiver| one.received.iter().map(|m| digest(&m.payload)).collect::<Vec<_>>();
    let sent: Vec<String> = sent.iter().map(|one| digest(one)).collect();
    Ok(json!([sent, digests(&exclusive), digests(&shared)]))
}

// -- keys -------------------------------------------------------------------------------------------------------------

fn keys_and_payloads(receivers: &[&Receiver]) -> Value {
    let facts = |one: &&Receiver| -> Vec<Value> {
        one.received.iter().map(|m| json!([m.routing_key, text(m)])).collect()
    };
    json!(receivers.iter().map(facts).collect::<Vec<_>>())
}

async fn affinity(client: &DanubeClient, topic: &str, count: usize, partitions: usize, is_reliable: bool) -> Outcome {
    let mut wanted = builder(client, topic, "producer");
    if is_reliable {
        wanted = wanted.with_reliable_dispatch();
    }
    if partitions > 0 {
        wanted = wanted.with_partitions(partitions);
    }
    let producer = create(wanted).await?;
    let mut receivers = three(client, topic, SubType::KeyShared).await?;
    connect_all(&producer, &mut receivers, true).await?;
    for number in 0..count {
        let key = format!("user-{}", number % 12);
        producer.send_with_key(number.to_string().into_bytes(), None, &key).await?;
    }
    drain(&mut receivers.iter_mut().collect::<Vec<_>>(), count).await?;
    Ok(keys_and_payloads(&receivers.iter().collect::<Vec<_>>()))
}

async fn filters(client: &DanubeClient, topic: &str) -> Outcome {
    let producer = reliable(client, topic).await?;
    let kind = SubType::KeyShared;
    let mut europe = receiver(client, topic, "subscription", "europe", kind.clone(), &["eu-*"]).await?;
    let mut others = receiver(client, topic, "subscription", "others", kind.clone(), &["us-?", "asia-*"]).await?;
    let keys = ["mars-1", "eu-west", "us-1", "asia-south", "us-12", "eu-north", "us-2"];
    for (number, key) in keys.iter().enumerate() {
        producer.send_with_key(number.to_string().into_bytes(), None, key).await?;
    }
    drain(&mut [&mut europe, &mut others], 5).await?;
    let mut late = receiver(client, topic, "subscription", "late", kind, &[]).await?;
    drain(&mut [&mut late], 2).await?;
    Ok(keys_and_payloads(&[&europe, &others, &late]))
}

// -- failures ---------------------------------------------------------------------------------------------------------

async fn nack(client: &DanubeClient, topic: &str, delays_ms: &Value) -> Outcome {
    let producer = reliable(client, topic).await?;
    let mut one = receiver(client, topic, "subscription", "consumer", SubType::Shared, &[]).await?;
    reached("subscribed", Value::Null);
    told("policy set").await;
    producer.send(b"again".to_vec(), None).await?;
    let mut message = one.next(false).await?;
    let mut waited = Vec::new();
    for delay_ms in delays_ms.as_array().expect("delays") {
        let asked = Instant::now();
        one.consumer.nack(&message, delay_ms.as_u64(), Some("not today".to_string())).await?;
        message = one.next(false).await?;
        waited.push(asked.elapsed().as_secs_f64() * 1000.0);
    }
    one.consumer.ack(&message).await?;
    producer.send(b"last".to_vec(), None).await?;
    one.next(true).await?;
    Ok(json!([waited, one.payloads()]))
}

async fn ack_timeout(client: &DanubeClient, topic: &str) -> Outcome {
    let producer = reliable(client, topic).await?;
    let mut one = exclusive_receiver(client, topic).await?;
    reached("subscribed", Value::Null);
    told("policy set").await;
    producer.send(b"slow".to_vec(), None).await?;
    one.next(false).await?;
    one.next(false).await?;
    one.next(true).await?;
    producer.send(b"last".to_vec(), None).await?;
    one.next(true).await?;
    Ok(json!(one.payloads()))
}

async fn dead_letter(client: &DanubeClient, topic: &str, dead_topic: &str, redeliveries: usize) -> Outcome {
    let producer = create(builder(client, topic, "billing").with_reliable_dispatch()).await?;
    let mut one = exclusive_receiver(client, topic).await?;
    let _dead_producer = reliable(client, dead_topic).await?;
    let mut dead = exclusive_receiver(client, dead_topic).await?;
    reached("subscribed", Value::Null);
    told("policy set").await;
    producer.send(b"before".to_vec(), None).await?;
    one.next(true).await?;
    let attributes = HashMap::from([("kind".to_string(), "invoice".to_string())]);
    producer.send_with_key(b"poison".to_vec(), Some(attributes), "customer 7").await?;
    let mut original = None;
    for _ in 0..=redeliveries {
        let message = one.next(false).await?;
        one.consumer.nack(&message, None, Some("cannot be read".to_string())).await?;
        original = Some(message);
    }
    let letter = dead.next(true).await?;
    producer.send(b"after".to_vec(), None).await?;
    one.next(true).await?;
    let facts = |m: &StreamMessage| {
        json!({
            "payload": text(m),
            "key": m.routing_key,
            "attributes": m.attributes,
            "producer_id": m.msg_id.producer_id,
            "offset": m.msg_id.topic_offset,
            "broker": m.msg_id.broker_addr,
        })
    };
    Ok(json!([facts(&original.expect("redelivered")), facts(&letter), one.payloads()]))
}

// -- sessions ---------------------------------------------------------------------------------------------------------

async fn reconnection(client: &DanubeClient, topic: &str) -> Outcome {
    let producer = reliable(client, topic).await?;
    let mut lives = Vec::new();
    for number in 0..3 {
        let mut one = exclusive_receiver(client, topic).await?;
        if number == 0 {
            producer.send(b"kept".to_vec(), None).await?;
        }
        one.next(number == 2).await?;
        lives.push(one.payloads());
        one.consumer.close().await;
    }
    let mut last = exclusive_receiver(client, topic).await?;
    producer.send(b"new".to_vec(), None).await?;
    last.next(true).await?;
    lives.push(last.payloads());
    Ok(json!(lives))
}

async fn exclusive(client: &DanubeClient, topic: &str) -> Outcome {
    let producer = reliable(client, topic).await?;
    let mut first = receiver(client, topic, "subscription", "first", SubType::Exclusive, &[]).await?;
    producer.send(b"first".to_vec(), None).await?;
    first.next(true).await?;
    let refused = status(receiver(client, topic, "subscription", "second", SubType::Exclusive, &[]).await);
    first.consumer.close().await;
    let mut second = receiver(client, topic, "subscription", "second", SubType::Exclusive, &[]).await?;
    producer.send(b"second".to_vec(), None).await?;
    second.next(true).await?;
    Ok(json!([refused, second.payloads()]))
}

// -- schemas ----------------------------------------------------------------------------------------------------------

const ID: &str = r#"{"name": "id", "type": "long"}"#;
const NOTE: &str = r#"{"name": "note", "type": "string", "default": ""}"#;
const PRICE: &str = r#"{"name": "price", "type": "double", "default": 0.0}"#;

fn record(fields: &[&str]) -> String {
    format!(r#"{{"type": "record", "name": "Order", "fields": [{}]}}"#, fields.join(", "))
}

async fn register(client: &DanubeClient, subject: &str, definition: &str) -> Result<u64, DanubeError> {
    let registry = client.schema();
    let request = registry.register_schema(subject).with_type(SchemaType::Avro);
    request.with_schema_data(definition.as_bytes().to_vec()).execute().await
}

async fn selection(client: &DanubeClient, topic: &str, subject: &str) -> Outcome {
    for fields in [&[ID][..], &[ID, NOTE], &[ID, NOTE, PRICE]] {
        register(client, subject, &record(fields)).await?;
    }
    let other = format!("{subject}-other");
    register(client, &other, &record(&[ID])).await?;
    let number = client.schema().get_latest_schema(subject).await?.schema_id;
    let named = |name: &str| builder(client, topic, name).with_reliable_dispatch();
    let wanted = [
        named("latest").with_schema_subject(subject),
        named("pinned").with_schema_version(subject, 2),
        named("pinned to the latest").with_schema_version(subject, 3),
        named("minimum").with_schema_min_version(subject, 2),
        named("none"),
    ];
    let mut producers = Vec::new();
    for one in wanted {
        producers.push(create(one).await?);
    }
    let mut one = exclusive_receiver(client, topic).await?;
    for producer in &producers {
        producer.send(vec![2], None).await?;
    }
    let mut seen = serde_json::Map::new();
    for _ in &producers {
        let message = one.next(true).await?;
        let facts = match (message.schema_id, message.schema_version) {
            (Some(id), Some(version)) => json!([id == number, version]),
            (id, version) => json!([id.is_some(), version.is_some()]),
        };
        seen.insert(message.producer_name, facts);
    }
    let elsewhere = format!("{topic}-2");
    let missing = format!("{subject}-missing");
    let there = |name: &str| builder(client, &elsewhere, name).with_reliable_dispatch();
    let refused = json!({
        "not registered": status(create(there("not registered").with_schema_subject(missing)).await),
        "no such version": status(create(there("no such version").with_schema_version(subject, 9)).await),
        "minimum too high": status(create(there("minimum too high").with_schema_min_version(subject, 9)).await),
        "second subject": status(create(named("second subject").with_schema_subject(other)).await),
    });
    Ok(json!([seen, refused]))
}

// -- kill -9 of the broker --------------------------------------------------------------------------------------------

/// A topic with partitions has one consumer for each partition here, because one of the whole topic does not survive
/// a kill: a partition's `partition_receive_loop` (consumer.rs) that opens its stream again while the connection breaks
/// gets `Cancelled` ("connection closed") or `Unknown` ("transport error") from tonic, which `is_retryable_error` does
/// not list, and returns; nothing starts it again, not even a health check that is answered with CLOSE, and the loops of
/// the other partitions keep the channel open, so that the application waits for ever.
async fn restart(client: &DanubeClient, topic: &str, kills: usize, messages: usize, partitions: usize) -> Outcome {
    let mut wanted = builder(client, topic, "producer").with_reliable_dispatch();
    wanted = wanted.with_options(ProducerOptions::new(200, 50, 200));
    let mut topics = vec![topic.to_string()];
    if partitions > 0 {
        wanted = wanted.with_partitions(partitions);
        topics = (0..partitions).map(|number| format!("{topic}-part-{number}")).collect();
    }
    let producer = Arc::new(create(wanted).await?);
    let received = Arc::new(Mutex::new([Vec::<String>::new(), Vec::new()]));
    for (place, (name, kind)) in [("exclusive", SubType::Exclusive), ("shared", SubType::Shared)].into_iter().enumerate() {
        for topic in &topics {
            let mut one = receiver(client, topic, name, "consumer", kind.clone(), &[]).await?;
            let (received, client, topic, kind) = (received.clone(), client.clone(), topic.clone(), kind.clone());
            tokio::spawn(async move {
                loop {
                    while let Some(message) = one.channel.recv().await {
                        let _ = one.consumer.ack(&message).await; // of a killed broker: the message comes again
                        received.lock().unwrap()[place].push(text(&message));
                    }
                    // So is a broken connection of a consumer, whose channel then ends: subscribe again.
                    if let Ok(again) = receiver(&client, &topic, name, "consumer", kind.clone(), &[]).await {
                        one = again;
                    }
                    tokio::time::sleep(TICK * 25).await;
                }
            });
        }
    }
    let sent = Arc::new(Mutex::new(Vec::<String>::new()));
    let stopping = Arc::new(AtomicBool::new(false));
    let mut senders = Vec::new();
    for sender in 0..4 {
        let (producer, sent, stopping) = (producer.clone(), sent.clone(), stopping.clone());
        senders.push(tokio::spawn(async move {
            let mut number = 0;
            while !stopping.load(Ordering::Relaxed) {
                let payload = format!("{sender}-{number}");
                // A connection that breaks is an error that this client leaves to the application: send again.
                while producer.send(payload.clone().into_bytes(), None).await.is_err() {
                    tokio::time::sleep(TICK * 25).await;
                }
                sent.lock().unwrap().push(payload);
                number += 1;
            }
        }));
    }
    for _ in 0..=kills {
        let wanted = sent.lock().unwrap().len() + messages;
        while sent.lock().unwrap().len() < wanted {
            tokio::time::sleep(TICK).await;
        }
        reached("running", json!(wanted));
        told("go on").await;
    }
    stopping.store(true, Ordering::Relaxed);
    for one in senders {
        one.await.expect("sender");
    }
    let sent = sent.lock().unwrap().clone();
    let mut result = Vec::new();
    let mut repeated = Vec::new();
    for place in 0..2 {
        loop {
            let all = received.lock().unwrap()[place].clone();
            let mut seen = std::collections::HashSet::new();
            let first: Vec<String> = all.iter().filter(|one| seen.insert(one.to_string())).cloned().collect();
            if sent.iter().all(|one| seen.contains(one)) {
                repeated.push(all.len() - first.len());
                result.push(first);
                break;
            }
            tokio::time::sleep(TICK * 10).await;
        }
    }
    Ok(json!({"sent": sent, "received": result, "repeated": repeated, "errors": []}))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let (name, url) = (words[1].as_str(), words[2].as_str());
    let arguments: Value = serde_json::from_str(&words[3])?;
    let size = |key: &str| arguments[key].as_u64().unwrap_or_default() as usize;
    let is = |key: &str| arguments[key].as_bool().unwrap_or_default();
    let topic = arguments["topic"].as_str().unwrap_or_default();
    let client = DanubeClient::builder().service_url(url).build().await?;
    let result = match name {
        "delivery.fan_out" => fan_out(&client, topic, size("count")).await,
        "delivery.round_robin" => round_robin(&client, topic, size("count"), is("reliable")).await,
        "delivery.partitions" => partitions(&client, topic, size("partitions"), size("count")).await,
        "delivery.large_messages" => large_messages(&client, topic, size("count"), size("size")).await,
        "keys.affinity" => affinity(&client, topic, size("count"), size("partitions"), is("reliable")).await,
        "keys.filters" => filters(&client, topic).await,
        "failures.nack" => nack(&client, topic, &arguments["delays_ms"]).await,
        "failures.ack_timeout" => ack_timeout(&client, topic).await,
        "failures.dead_letter" => {
            let dead_topic = arguments["dead_topic"].as_str().unwrap_or_default();
            dead_letter(&client, topic, dead_topic, size("redeliveries")).await
        }
        "sessions.reconnection" => reconnection(&client, topic).await,
        "sessions.exclusive" => exclusive(&client, topic).await,
        "schemas.selection" => selection(&client, topic, arguments["subject"].as_str().unwrap_or_default()).await,
        "restart.run" => restart(&client, topic, size("kills"), size("messages"), size("partitions")).await,
        _ => {
            println!("{}", json!({"missing": name}));
            return Ok(());
        }
    }?;
    println!("{}", json!({"result": result}));
    Ok(())
}
