//! The counters of a worker, in the text format of Prometheus, over HTTP.
//!
//! # Source
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use waypost::store::Store;

/// Longest request: a scrape has a few headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest time for a request and its answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What a worker has done.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) claimed: AtomicU64,
    pub(super) running: AtomicU64,
    pub(super) at_rest: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) errors: AtomicU64,
}

impl Counters {
    /// Adds one to a counter.
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn text(&self, ready: Option<u64>) -> String {
        let read = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed));
        let metrics = [
            ("waypost_worker_claimed_total", "counter", "Runs claimed.", read(&self.claimed)),
            ("waypost_worker_running", "gauge", "Runs executed now.", read(&self.running)),
            ("waypost_worker_at_rest_total", "counter", "Runs that ended or wait.", read(&self.at_rest)),
            ("waypost_worker_returned_total", "counter", "Runs left to other workers.", read(&self.returned)),
            ("waypost_worker_errors_total", "counter", "Errors of the store.", read(&self.errors)),
            ("waypost_queue_ready", "gauge", "Runs that wait for a worker.", ready),
        ];
        let mut text = String::new();
        for (name, kind, help, value) in metrics {
            if let Some(value) = value {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
            }
        }
        text
    }
}

/// Serves the counters at an address, until the process ends.
///
/// # Errors
/// The address is in use, or not of this machine.
pub(super) async fn serve(
    address: SocketAddr,
    counters: Arc<Counters>,
    store: Arc<dyn Store>,
) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tokio::spawn(async move {
        // A failed connection is that of its client.
        while let Ok((stream, _)) = listener.accept().await {
            let (counters, store) = (Arc::clone(&counters), Arc::clone(&store));
            tokio::spawn(async move {
                let _ = tokio::time::timeout(ANSWER_MAX, answer(stream, &counters, store.as_ref())).await;
            });
        }
    });
    Ok(())
}

async fn answer(mut stream: TcpStream, counters: &Counters, store: &dyn Store) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 1 << 10];
        let count = stream.read(&mut part).await?;
        if count == 0 || request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&part[..count]);
    }
    let (status, body) = match request.starts_with(b"GET /metrics ") {
        true => {
            let ready = match store.queue() {
                Some(queue) => queue.depth().await.ok(),
                None => None,
            };
            ("200 OK", counters.text(ready))
        }
        false => ("404 Not Found", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
