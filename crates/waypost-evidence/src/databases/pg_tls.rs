//! TLS for connections to PostgreSQL.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::client::TlsStream;

use crate::network::tls::over;

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
