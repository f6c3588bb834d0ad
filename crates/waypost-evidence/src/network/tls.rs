//! TLS with the root certificates of this machine.

use std::sync::{Arc, LazyLock};

use tokio::io::{AsyncRead, AsyncWrite};
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
