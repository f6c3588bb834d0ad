//! A server that speaks TLS.

use std::process::Command;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};
use waypost_testing::certificates::{AUTHORITY, KEY, SERVER};

/// One that answers every request, until it is dropped.
pub(crate) struct TlsServer {
    pub(crate) port: u16,
    _runtime: tokio::runtime::Runtime,
}

pub(crate) fn serve() -> TlsServer {
    let certificate = CertificateDer::from_pem_slice(SERVER.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![certificate], key).unwrap()));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("0.0.0.0:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.ok()?;
                let asked = stream.read(&mut [0; 4096]).await.ok()?;
                assert!(asked > 0, "a request, and not the end of one");
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.ok()?;
                stream.shutdown().await.ok()
            });
        }
    });
    TlsServer { port, _runtime: runtime }
}

/// Runs a test in another program that trusts our authority, with a variable: authorities are read once.
pub(crate) fn trusting(test: &str, (variable, value): (&str, &str)) {
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("authority.pem");
    std::fs::write(&authority, AUTHORITY).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child =
        child.args(["--exact", test]).env(variable, value).env("SSL_CERT_FILE", authority).output().unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}
