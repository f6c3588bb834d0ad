//! TLS with the root certificates of this machine.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use waypost::evidence::Finding;

/// Loaded once: root certificates rarely change during a run.
static CONFIG: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(config);

fn config() -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("this machine has no trusted certificate authority (install `ca-certificates`, or set \
                    SSL_CERT_FILE)"
            .to_owned());
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    // Client certificates stay unused: the server must not learn the identity of the client.
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Starts TLS on a connection; the server needs a certificate for `name`.
pub(crate) async fn over<S>(stream: S, name: &str) -> Result<TlsStream<S>, Finding>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = CONFIG.as_ref().map_err(Finding::unknown)?;
    let server = ServerName::try_from(name.to_owned());
    let server = server
        .map_err(|_| Finding::unknown(format!("`{name}` is not valid as the name of a certificate")))?;
    let connector = TlsConnector::from(Arc::clone(config));
    let connected = connector.connect(server, stream).await;
    connected.map_err(|error| Finding::unknown(format!("TLS to `{name}` failed: {error}")))
}

/// A TLS connector for PostgreSQL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForPostgres;

/// An encrypted connection to PostgreSQL.
#[derive(Debug)]
pub(crate) struct Safe<S>(TlsStream<S>);

impl<S> MakeTlsConnect<S> for ForPostgres
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Safe<S>;
    type TlsConnect = To;
    type Error = Infallible;

    fn make_tls_connect(&mut self, domain: &str) -> Result<To, Infallible> {
        Ok(To(domain.to_owned()))
    }
}

/// The server name that the certificate must match.
#[derive(Debug)]
pub(crate) struct To(String);

impl<S> TlsConnect<S> for To
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Safe<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Safe<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let stream = over(stream, &self.0).await;
            stream.map(Safe).map_err(|finding| io::Error::other(finding.why().unwrap_or_default().to_owned()))
        })
    }
}

impl<S> tls::TlsStream for Safe<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Safe<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Safe<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
