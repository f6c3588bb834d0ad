//! A run that was begun with an old type of state goes on with a new one.
//!
//! ```text
//! cargo run -p waypost --example migration -- STORE old      version 1 of this program begins the run, and is held
//! cargo run -p waypost --example migration -- STORE new      version 2 goes on with it
//! ```
//!
//! Version 2 keeps more of each order than version 1 did. The new fields have defaults, so that states without them
//! can be read; they are filled in when the run goes on, and stored with the next checkpoint. Nothing stored is
//! rewritten: the old checkpoints stay as they are, and are read in the same way.
//!
//! Shows: an additive change of the state, a graph under way, `interrupt_before`, and a checkpoint read back.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::error::Error;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use waypost::file::FileStore;
use waypost::graph::State;
use waypost::{CheckpointRef, Context, Engine, Graph, GraphError, StepError};

const RUN: &str = "invoices";

/// The program as it was.
mod old {
    use super::{Context, Deserialize, Graph, GraphError, Serialize, StepError, graph};

    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    pub struct Orders {
        pub orders: Vec<Order>,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub struct Order {
        pub customer: String,
        pub cents: u64,
    }

    async fn collect(mut state: Orders, _: Context) -> Result<Orders, StepError> {
        state.orders.push(Order { customer: "Ada".to_owned(), cents: 1_250 });
        state.orders.push(Order { customer: "Grace".to_owned(), cents: 990 });
        Ok(state)
    }

    async fn bill(state: Orders, _: Context) -> Result<Orders, StepError> {
        Ok(state)
    }

    pub fn orders() -> Result<Graph<Orders>, GraphError> {
        graph(collect, bill)
    }
}
