//! The code of docs/guide/inside-a-step.md.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::store::{Scan, Store as _};
use waypost::{
    Context, Doubtful, END, Engine, FileStore, Graph, MemoryStore, RunError, RunId, RunStatus, ScopePath,
    StepError, StopHandle, StopLevel, TreatAs, Usage, WaitKind,
};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Order {
    paid: Option<u32>,
    said: String,
}

fn one_step<F, Fut>(step: F) -> Graph<Order>
where
    F: Fn(Order, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Order, StepError>> + Send + 'static,
{
    Graph::<Order>::builder("order").step("step", step).build().unwrap()
}

struct Clients {
    prices: String,
}

async fn quote(mut order: Order, _: Context, clients: &Clients) -> Result<Order, StepError> {
    order.said = format!("asked {}", clients.prices);
    Ok(order)
}

#[tokio::test]
async fn a_step_borrows_the_clients_of_its_graph() {
    let clients = Clients { prices: "https://prices.example".to_owned() };
    let graph = Graph::<Order>::with_resources("order", clients).step_using("quote", quote).build().unwrap();

    let outcome = Engine::new(Arc::new(MemoryStore::new())).run(&graph, "r", Order::default()).await.unwrap();

    assert_eq!(outcome.into_result().unwrap().said, "asked https://prices.example");
}

async fn charge() -> Result<u32, StepError> {
    static CHARGED: AtomicU32 = AtomicU32::new(0);
    Ok(CHARGED.fetch_add(1, Ordering::Relaxed) + 1)
}

async fn pay(mut order: Order, context: Context) -> Result<Order, StepError> {
    let receipt: u32 = context.once("charge", charge()).await?;
    order.paid = Some(receipt);

    // The step is suspended here. After the answer it runs from its top, without `charge`.
    order.said = context.interrupt("thanks", "What shall the note say?").await?;
    Ok(order)
}

#[tokio::test]
async fn what_is_done_once_is_not_done_again() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = one_step(pay);

    let outcome = engine.run(&graph, "r", Order::default()).await.unwrap();
    engine.answer("r", &outcome.waiting[0].wait.id, json!("Thank you")).await.unwrap();
    let outcome = engine.resume(&graph, "r").await.unwrap();

    assert_eq!((outcome.state.paid, outcome.state.said.as_str()), (Some(1), "Thank you"));
}

async fn remind(order: Order, context: Context) -> Result<Order, StepError> {
    context.sleep("a-week", Duration::from_secs(7 * 24 * 60 * 60)).await?;
    Ok(order)
}

#[tokio::test]
async fn a_long_sleep_lets_the_process_go() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = one_step(remind);

    let outcome = engine.run(&graph, "r", Order::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Waiting);
    assert!(matches!(outcome.waiting[0].wait.on, WaitKind::Until(_)));

    let too_early = engine.resume(&graph, "r").await.unwrap();
    assert_eq!(too_early.status, RunStatus::Waiting);
}

async fn ship(mut order: Order, context: Context) -> Result<Order, StepError> {
    order.said = context.signal("packed", "packed").await?;
    Ok(order)
}

#[tokio::test]
async fn a_signal_is_kept_until_it_is_taken() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = one_step(ship);

    let outcome = engine.run(&graph, "r", Order::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Waiting);

    engine.signal("r", "packed", json!("in box 7")).await.unwrap();
    let outcome = engine.resume(&graph, "r").await.unwrap();
    assert_eq!(outcome.state.said, "in box 7");

    let refused = engine.signal("r", "packed", json!("in box 8")).await.unwrap_err();
    assert_eq!(refused.to_string(), "cannot send signal `packed` to run r: it is completed");
}

async fn deliver(mut order: Order, context: Context) -> Result<Order, StepError> {
    let day = Duration::from_secs(24 * 60 * 60);
    let signed: Option<String> = context.signal_within("signed", "signed", day).await?;
    order.said = signed.unwrap_or_else(|| "left at the door".to_owned());
    Ok(order)
}

async fn paid_or_cancelled(mut order: Order, context: Context) -> Result<Order, StepError> {
    tokio::select! {
        paid = context.signal::<u32>("paid", "paid") => order.paid = Some(paid?),
        slept = context.sleep("a-week", Duration::from_secs(7 * 24 * 60 * 60)) => slept?,
        said = context.interrupt("cancel", "Cancel the order?") => order.said = said?,
    }
    Ok(order)
}

#[tokio::test]
async fn the_earliest_of_several_waits_wakes_the_step() {
    let clock = Arc::new(waypost_testing::TestClock::default());
    let engine = Engine::new(Arc::new(MemoryStore::new())).with_clock(clock.clone());
    let (deliver, pays) = (one_step(deliver), one_step(paid_or_cancelled));

    engine.run(&deliver, "d", Order::default()).await.unwrap();
    assert_eq!(engine.run(&pays, "p", Order::default()).await.unwrap().waiting.len(), 3);
    engine.signal("p", "paid", json!(7)).await.unwrap();
    clock.pass(Duration::from_secs(25 * 60 * 60));

    assert_eq!(engine.resume(&deliver, "d").await.unwrap().state.said, "left at the door");
    assert_eq!(engine.resume(&pays, "p").await.unwrap().state.paid, Some(7));
}

async fn summarise(order: Order, context: Context) -> Result<Order, StepError> {
    context.usage(&Usage { tokens_in: 1_200, tokens_out: 80, cost: 0.004, model: None });
    context.emit("summarised", json!({ "words": 60 }));
    context.checkpoint().await?; // Durable now, instead of at the end of the step.
    context.report("Sixty words about the order.");
    Ok(order)
}

#[tokio::test]
async fn what_a_step_says_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::open(folder.path()).unwrap());
    let engine = Engine::new(store.clone());

    let outcome = engine.run(&one_step(summarise), "r", Order::default()).await.unwrap();

    let records = store.scan(&Scan::of(&outcome.run)).await.unwrap().records;
    let tokens: u64 = records.iter().filter_map(|r| r.header().usage.as_ref()).map(|u| u.tokens_in).sum();
    assert_eq!(tokens, 1_200);
    let report = std::fs::read_to_string(store.folder(&outcome.run).unwrap().join("report.md")).unwrap();
    assert!(report.contains("Sixty words about the order."), "{report}");
}

async fn crawl(mut order: Order, context: Context) -> Result<Order, StepError> {
    loop {
        tokio::select! {
            () = context.cancelled() => break, // Ten seconds remain for the cleanup.
            () = tokio::time::sleep(Duration::from_millis(50)) => order.said.push('.'),
        }
    }
    Ok(order)
}

#[tokio::test]
async fn a_step_that_heeds_a_stop_ends_by_itself() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = Graph::<Order>::builder("crawl")
        .step("crawl", crawl)
        .step("after", |order: Order, _| async move { Ok::<_, StepError>(order) })
        .edge("crawl", "after")
        .build()
        .unwrap();

    let stop = StopHandle::default();
    let run = engine.run(&graph, "r", Order::default()).stop_handle(&stop);

    stop.stop(StopLevel::Graceful, "the test"); // From a signal handler or another task.
    let outcome = run.await.unwrap();
    assert_eq!(outcome.status, RunStatus::Interrupted);
    assert_eq!(outcome.stopped_by.as_deref(), Some("the test"));
}

#[tokio::test]
async fn what_must_not_be_repeated_is_in_doubt_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::new(Arc::new(FileStore::open(folder.path()).unwrap()));
    let reached = Arc::new(tokio::sync::Notify::new());
    let in_mail = Arc::clone(&reached);
    let mail = move |order: Order, context: Context| {
        let in_mail = Arc::clone(&in_mail);
        async move {
            in_mail.notify_one();
            if context.epoch() == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, StepError>(order)
        }
    };

    let graph = Graph::<Order>::builder("order").step("mail", mail).not_idempotent().build().unwrap();

    tokio::select! {
        ended = engine.run(&graph, "r", Order::default()).into_future() => panic!("it ended: {ended:?}"),
        () = reached.notified() => {}
    }

    let refused = engine.resume(&graph, "r").await.unwrap_err();
    assert!(matches!(refused, RunError::InDoubt { .. }));

    // A person checked: no mail went out. The rerun has a new epoch and a new idempotency key.
    let outcome = engine.resume(&graph, "r").retry_doubtful().await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);

    let ended = engine.resume(&graph, "r").from_step(END).await.unwrap();
    assert_eq!((ended.status, RunId::new("r").unwrap()), (RunStatus::Completed, ended.run));
}

#[tokio::test]
async fn what_was_done_after_all_is_settled_by_a_program() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let reached = Arc::new(tokio::sync::Notify::new());
    let in_mail = Arc::clone(&reached);
    let mail = move |order: Order, _: Context| {
        in_mail.notify_one();
        async move {
            std::future::pending::<()>().await;
            Ok::<_, StepError>(order)
        }
    };
    let graph = Graph::<Order>::builder("order").step("mail", mail).not_idempotent().build().unwrap();

    let run = engine.run(&graph, "r", Order::default()).checkpoint_interval(Duration::from_secs(60));

    tokio::select! {
        ended = run.into_future() => panic!("it ended: {ended:?}"),
        () = reached.notified() => {}
    }
    let outbox = [ScopePath::main()];

    let settled = move |order: &mut Order, doubtful: &Doubtful| match outbox.contains(&doubtful.scope) {
        true => {
            order.said = "mailed".to_owned(); // The output of the step.
            Ok(TreatAs::Done)
        }
        false => Ok(TreatAs::Retry),
    };
    let outcome = engine.resume(&graph, "r").settle_doubtful(settled).await.unwrap();
    assert_eq!(outcome.state.said, "mailed");
}
