//! Checks certificate chains, which must be short so that the check is cheap.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// Most certificates between a peer's and its authority's.
const MOST: usize = 4;

/// A peer shows more certificates than are looked at.
#[derive(Debug, thiserror::Error)]
#[error("the peer shows {shown} certificates beside its own, of at most {most}")]
struct TooManyCertificates {
    shown: usize,
    most: usize,
}

/// Checks who connects. Every order of the certificates that a stranger shows
/// may be a way to an authority, and webpki tries up to 200,000 ways: a tenth
/// of a second for 150 certificates.
#[derive(Debug)]
pub struct ShortChains(pub Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > MOST {
            let why = TooManyCertificates {
                shown: intermediates.len(),
                most: MOST,
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
