//! Limits the length of certificate chains, so that checking them is cheap.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Maximum number of certificates between a peer's and its authority's.
const MAX_INTERMEDIATES: usize = 4;

/// A peer shows too many certificates.
#[derive(Debug, thiserror::Error)]
#[error("the peer shows {shown} certificates besides its own; at most {most} are allowed")]
struct TooManyCertificates {
    shown: usize,
    most: usize,
}

/// Checks the certificates of connecting peers. Any order of a stranger's certificates
/// might lead to an authority, and webpki tries up to 200,000 paths: a tenth of a second
/// for 150 certificates.
#[derive(Debug)]
pub struct ChainLimit(pub Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ChainLimit {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > MAX_INTERMEDIATES {
            let why = TooManyCertificates {
                shown: intermediates.len(),
                most: MAX_INTERMEDIATES,
            };
            return Err(CertificateError::Other(OtherError(Arc::new(why))).into());
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
