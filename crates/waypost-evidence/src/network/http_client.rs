//! A single HTTP/1.1 request over an open connection.

use std::convert::Infallible;
use std::future::pending;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, HOST, HeaderMap, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use waypost::evidence::Finding;

/// Longest body. The body is held in memory, at worst as a JSON tree, and up to eight checks run at once.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 20;

/// An HTTP request.
#[derive(Debug)]
pub(crate) struct HttpRequest<'a> {
    pub(crate) method: Method,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    /// Whether to read the body.
    pub(crate) wants_body: bool,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only claims about HTTP answers read it"))]
    pub(crate) headers: HeaderMap,
    /// Empty unless the request wants the body.
    pub(crate) body: Vec<u8>,
}

/// Sends a request over `stream`, returns the answer and closes the connection.
///
/// The request carries only what the claim names: it has neither cookies nor credentials.
pub(crate) async fn send<S>(stream: S, request_spec: HttpRequest<'_>) -> Result<HttpResponse, Finding>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error_finding(&error))?;
    let request = Request::builder()
        .method(request_spec.method)
        .uri(request_spec.path)
        .header(HOST, request_spec.host)
        .header(USER_AGENT, concat!("waypost/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "*/*")
        .header(ACCEPT_ENCODING, "identity")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Finding::failed(format!("cannot build the request: {error}")))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| error_finding(&error))?;
        answer(response, request_spec.wants_body).await
    };
    // The connection is polled with the exchange and dropped with it.
    let drive = async {
        let _ = connection.await;
        pending::<Infallible>().await
    };
    tokio::select! {
        answer = exchange => answer,
        never = drive => match never {},
    }
}

async fn answer(response: Response<Incoming>, wants_body: bool) -> Result<HttpResponse, Finding> {
    let (parts, mut incoming) = response.into_parts();
    let mut body = Vec::new();
    if wants_body {
        if let Some(encoding) = parts.headers.get(CONTENT_ENCODING).filter(|encoding| *encoding != "identity")
        {
            let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
            return Err(Finding::unknown(format!("the response has the unsupported encoding `{encoding}`")));
        }
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|error| error_finding(&error))?;
            let Ok(data) = frame.into_data() else { continue };
            if body.len() + data.len() > BODY_BYTES_MAX {
                return Err(Finding::unknown(format!("the response exceeds {} MiB", BODY_BYTES_MAX >> 20)));
            }
            body.extend_from_slice(&data);
        }
    }
    Ok(HttpResponse { status: parts.status, headers: parts.headers, body })
}

/// Returns the finding for a protocol error or a broken connection.
fn error_finding(error: &hyper::Error) -> Finding {
    if error.is_parse() {
        // hyper reports this case to clients only as text.
        if error.to_string().contains("too large") {
            return Finding::unknown("the response header exceeds the limit");
        }
        return Finding::failed(format!("the response is not HTTP: {error}"));
    }
    Finding::unknown_yet(format!("the connection was closed: {error}"))
}
