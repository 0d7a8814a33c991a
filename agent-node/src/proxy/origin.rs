//! TLS towards upstreams: who is trusted, and the handshake.
//!
//! Owns the client configuration (system roots and the operator's extra CA, ALPN `http/1.1`) and the
//! stream that an upstream connection is, with or without TLS. There is no way to skip the
//! verification.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::relay::Socket;

/// How to speak TLS to upstreams.
pub(crate) struct Tls(Option<TlsConnector>);

impl Tls {
    /// Trusts the system's roots and the certificates in `extra_ca_file`.
    pub(crate) fn new(extra_ca_file: Option<&Path>) -> Tls {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(error = %error, "a system root certificate can't be read");
        }
        roots.add_parsable_certificates(found.certs);
        if let Some(path) = extra_ca_file {
            match read_pem(path) {
                Ok(certificates) => {
                    roots.add_parsable_certificates(certificates);
                }
                Err(error) => {
                    tracing::error!(file = %path.display(), error = %error, "tls.extraCaFile can't be read; its upstreams will not be trusted");
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Tls(match config {
            Ok(config) => {
                let mut config = config.with_root_certificates(roots).with_no_client_auth();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                Some(TlsConnector::from(Arc::new(config)))
            }
            Err(error) => {
                tracing::error!(error = %error, "no TLS towards upstreams");
                None
            }
        })
    }

    /// Does the handshake for `name` over `stream`.
    ///
    /// # Errors
    /// When the certificate isn't trusted or isn't for `name`, and on any other handshake failure.
    pub(crate) async fn connect(
        &self,
        name: &str,
        stream: TcpStream,
    ) -> io::Result<UpstreamStream> {
        let connector = self
            .0
            .as_ref()
            .ok_or_else(|| io::Error::other("TLS is not available"))?;
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = connector.connect(name, stream).await?;
        Ok(UpstreamStream::Tls(Box::new(stream)))
    }
}

fn read_pem(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = std::fs::read(path)?;
    CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)
}

/// A connection to an upstream.
pub(crate) enum UpstreamStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket for UpstreamStream {
    fn tcp(&self) -> &TcpStream {
        match self {
            UpstreamStream::Plain(stream) => stream,
            UpstreamStream::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            UpstreamStream::Plain(stream) => stream.is_write_vectored(),
            UpstreamStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            UpstreamStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
