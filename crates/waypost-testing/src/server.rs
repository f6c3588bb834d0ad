//! A server that says what a test wants, over TCP or a Unix socket: one answer a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest head of a request that is read; those of tests are a few lines.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What is said to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// These bytes; then the connection is closed.
    Bytes(Vec<u8>),
    /// These bytes; then nothing more until the server ends.
    Silence(Vec<u8>),
}

impl Reply {
    /// Makes an answer by HTTP/1.1 with these headers and this body.
    pub fn http(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut text = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str("\r\n");
        Self::Bytes([text.as_bytes(), body].concat())
    }
}

/// A server that ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    place: Place,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Default)]
struct State {
    ends: AtomicBool,
    heads: Mutex<Vec<String>>,
}

trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Server {
    /// Starts one at a free port of this machine; `answer` is given the head of each request.
    ///
    /// # Errors
    /// When there is no port.
    pub fn tcp(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let place = Place::Tcp(listener.local_addr()?);
        Ok(Self::start(place, move || Ok(Box::new(listener.accept()?.0)), answer))
    }

    /// Starts one at a socket.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn unix(path: &Path, answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let place = Place::Unix(path.to_owned());
        Ok(Self::start(place, move || Ok(Box::new(listener.accept()?.0)), answer))
    }

    fn start(
        place: Place,
        mut accept: impl FnMut() -> io::Result<Box<dyn Stream>> + Send + 'static,
        answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(State::default());
        let (answer, shared) = (Arc::new(answer), Arc::clone(&state));
        let thread = thread::spawn(move || {
            while let Ok(stream) = accept() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let (answer, shared) = (Arc::clone(&answer), Arc::clone(&shared));
                // Each on its own: one that is kept waiting keeps no other.
                thread::spawn(move || {
                    // A client that has gone needs no answer.
                    let _ = serve(stream, answer.as_ref(), &shared);
                });
            }
        });
        Self { place, state, thread: Some(thread) }
    }

    /// Returns its port.
    ///
    /// # Panics
    /// If it is at a Unix socket.
    pub fn port(&self) -> u16 {
        match &self.place {
            Place::Tcp(address) => address.port(),
            Place::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    /// Returns the URL of a path, with the address of this machine.
    ///
    /// # Panics
    /// If it is at a Unix socket.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    /// Returns the heads of the requests so far.
    pub fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        // It is woken up to see that it ends; where nobody listens any more, it has.
        match &self.place {
            Place::Tcp(address) => drop(TcpStream::connect(address)),
            Place::Unix(path) => drop(UnixStream::connect(path)),
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: Box<dyn Stream>, answer: &dyn Fn(&str) -> Reply, state: &State) -> io::Result<()> {
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
