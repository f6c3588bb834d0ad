//! A run with an old type of state, resumed by a program with a new type.
//!
//! ```text
//! cargo run -p waypost --example migration -- STORE old      version 1 of this program takes orders, and is held
//! cargo run -p waypost --example migration -- STORE new      version 2 goes on, and bills them in their currency
//! ```
//!
//! Version 1 has no currencies. Version 2 migrates states of version 1. The migration runs when a state is
//! read: stored records do not change, and old checkpoints are read in the same way. With `old` afterwards,
//! version 1 refuses the newer states.
//!
//! Shows: `Migrations`, a held run, and an old checkpoint read by a new program.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::error::Error;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::engine::OnChange;
use waypost::file::FileStore;
use waypost::store::StoreError;
use waypost::{Context, Engine, Graph, RunError, StepError};

const RUN: &str = "invoices";

/// The old program.
mod old {
    use super::*;

    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    pub(super) struct Orders {
        orders: Vec<Order>,
        billed: Vec<String>,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Order {
        customer: String,
        amount: u64,
    }

    async fn take(mut state: Orders, _: Context) -> Result<Orders, StepError> {
        state.orders.push(Order { customer: "Ada".to_owned(), amount: 12 });
        state.orders.push(Order { customer: "Grace".to_owned(), amount: 9 });
        Ok(state)
    }

    async fn bill(mut state: Orders, _: Context) -> Result<Orders, StepError> {
        state.billed = state.orders.iter().map(|o| format!("{}: {}", o.customer, o.amount)).collect();
        Ok(state)
    }

    pub(super) fn graph() -> Result<Graph<Orders>, Box<dyn Error>> {
        let graph = Graph::<Orders>::builder("invoices").step("take", take).step("bill", bill);
        Ok(graph.edge("take", "bill").build()?)
    }
}

/// The new program.
mod new {
    use serde_json::json;
    use waypost::schema::Migrations;

    use super::*;

    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    pub(super) struct Orders {
        pub(super) orders: Vec<Order>,
        pub(super) billed: Vec<String>,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(super) struct Order {
        customer: String,
        amount: u64,
        currency: String,
    }

    /// From version 0, a state without a version, to 1: all payments were in euros then.
    fn migrations() -> Result<Migrations, Box<dyn Error>> {
        let migrations = Migrations::builder().add(0, |state| {
            for order in state["orders"].as_array_mut().ok_or("there are no orders")? {
                order["currency"] = json!("EUR");
            }
            Ok(())
        });
        Ok(migrations.build()?)
    }

    async fn take(mut state: Orders, _: Context) -> Result<Orders, StepError> {
        let order = |customer: &str, amount| {
            let (customer, currency) = (customer.to_owned(), "USD".to_owned());
            Order { customer, amount, currency }
        };
        state.orders.extend([order("Ada", 12), order("Grace", 9)]);
        Ok(state)
    }

    async fn bill(mut state: Orders, _: Context) -> Result<Orders, StepError> {
        let told = |order: &Order| format!("{}: {} {}", order.customer, order.amount, order.currency);
        state.billed = state.orders.iter().map(told).collect();
        Ok(state)
    }

    pub(super) fn graph() -> Result<Graph<Orders>, Box<dyn Error>> {
        let graph = Graph::<Orders>::builder("invoices").migrations(migrations()?);
        let graph = graph.step("take", take).step("bill", bill).revision(1);
        Ok(graph.edge("take", "bill").build()?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(store), Some(version)) = (args.next(), args.next()) else {
        return Err("usage: migration STORE old|new".into());
    };
    let engine = Engine::new(Arc::new(FileStore::open(store)?));
    match version.as_str() {
        "old" => go_with_old(&engine).await,
        "new" => go_with_new(&engine).await,
        _ => Err("the version is `old` or `new`".into()),
    }
}

async fn go_with_old(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let graph = old::graph()?;
    match engine.run(&graph, RUN, old::Orders::default()).interrupt_before(["bill"]).await {
        Err(RunError::Store(StoreError::Exists { .. })) => engine.resume(&graph, RUN).await?,
        outcome => outcome?,
    };
    println!("orders were taken; go on with `new`");
    Ok(())
}

async fn go_with_new(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let graph = new::graph()?;
    // The definition of `bill` changed since the run began; `Adopt` accepts the change.
    let outcome = engine.resume(&graph, RUN).on_change(OnChange::Adopt).await?;
    for bill in &outcome.state.billed {
        println!("{bill}");
    }
    // A checkpoint of the old program, read through the same migrations.
    let then = engine.inspect(&graph, &format!("{RUN}@2").parse()?).await?;
    println!("before that: {} orders, {} bills", then.state.orders.len(), then.state.billed.len());
    Ok(())
}
