//! A scripted server over TCP or a Unix socket, with an answer per connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest request head; test requests have a few lines.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Sends these bytes and closes the connection.
    Bytes(Vec<u8>),
    /// Sends these bytes and keeps the connection open until the server ends.
    Silence(Vec<u8>),
}

impl Reply {
    /// Returns an HTTP/1.1 response with these headers and this body.
    pub fn http(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut text = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
        Self::Bytes([text.as_bytes(), body].concat())
    }
}

/// A server that ends when dropped.
#[derive(Debug)]
pub struct Server {
    place: Endpoint,
    state: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Default)]
struct ServerState {
    ends: AtomicBool,
    heads: Mutex<Vec<String>>,
}

trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Server {
    /// Starts a server on a free local port; `answer` gets the head of each request.
    ///
    /// # Errors
    /// If no port can be bound.
    pub fn tcp(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let place = Endpoint::Tcp(listener.local_addr()?);
        Ok(Self::start(place, move || Ok(Box::new(listener.accept()?.0)), answer))
    }

    /// Starts a server on a Unix socket; `answer` gets the head of each request.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn unix(path: &Path, answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let place = Endpoint::Unix(path.to_owned());
        Ok(Self::start(place, move || Ok(Box::new(listener.accept()?.0)), answer))
    }

    fn start(
        place: Endpoint,
        mut accept: impl FnMut() -> io::Result<Box<dyn Stream>> + Send + 'static,
        answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(ServerState::default());
        let (answer, shared) = (Arc::new(answer), Arc::clone(&state));
        let thread = thread::spawn(move || {
            while let Ok(stream) = accept() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let (answer, shared) = (Arc::clone(&answer), Arc::clone(&shared));
                // A thread per connection: a waiting client does not block others.
                thread::spawn(move || {
                    // The client may have closed the connection.
                    let _ = serve(stream, answer.as_ref(), &shared);
                });
            }
        });
        Self { place, state, thread: Some(thread) }
    }

    /// Returns the port.
    ///
    /// # Panics
    /// If the server uses a Unix socket.
    pub fn port(&self) -> u16 {
        match &self.place {
            Endpoint::Tcp(address) => address.port(),
            Endpoint::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    /// Returns the URL of a path on the loopback address.
    ///
    /// # Panics
    /// If the server uses a Unix socket.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// Returns the request heads so far.
    pub fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        // A connection wakes the accept loop; a failure means that the loop has ended.
        match &self.place {
            Endpoint::Tcp(address) => drop(TcpStream::connect(address)),
            Endpoint::Unix(path) => drop(UnixStream::connect(path)),
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: Box<dyn Stream>, answer: &dyn Fn(&str) -> Reply, state: &ServerState) -> io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let reply = answer(&head);
    state.heads.lock().unwrap_or_else(PoisonError::into_inner).push(head);
    match reply {
        Reply::Bytes(bytes) => stream.write_all(&bytes),
        Reply::Silence(bytes) => {
            stream.write_all(&bytes)?;
            while !state.ends.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
    }
}
