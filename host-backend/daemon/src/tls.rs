//! What daemons of two hosts show each other: certificates of an authority
//! that both name.
#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use paragpu_config::host::Migration;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use crate::Error;

/// Both roles of a host. Each side shows its certificate, and believes those
/// of its authorities only.
#[derive(Debug, Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

fn refused<'a>(
    key: &'static str,
    path: &'a Path,
) -> impl Fn(&dyn std::fmt::Display) -> Error + use<'a> {
    move |reason| Error::Certificate {
        key,
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

impl Tls {
    /// Reads the files that `migration` names; `None` where it names none.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn load(migration: &Migration) -> Result<Option<Self>, Error> {
        if migration.ca.as_os_str().is_empty() {
            return Ok(None);
        }
        let roots = Arc::new(authorities(&migration.ca)?);
        let failed = refused("migration.certificate", &migration.certificate);
        let chain = certificates(&migration.certificate).map_err(|reason| failed(&reason))?;
        let key = private_key(&migration.key)?;
        let provider = Arc::new(default_provider());
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| failed(&error))?;
        client.resumption = Resumption::disabled();
        let trusted = refused("migration.ca", &migration.ca);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| trusted(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| failed(&error))?;
        // Every link shows its certificates anew.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Some(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        }))
    }

    /// The end that connected, to a host of this name or address.
    ///
    /// # Errors
    /// One sentence.
    pub fn client(&self, name: &str) -> Result<Connection, String> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is neither a host's name nor an address"))?;
        ClientConnection::new(Arc::clone(&self.client), name)
            .map(Connection::from)
            .map_err(|error| error.to_string())
    }

    /// The end that was connected to.
    ///
    /// # Errors
    /// One sentence.
    pub fn server(&self) -> Result<Connection, String> {
        ServerConnection::new(Arc::clone(&self.server))
            .map(Connection::from)
            .map_err(|error| error.to_string())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let list = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| error.to_string())?;
    if list.is_empty() {
        return Err("it holds no certificate in PEM form".into());
    }
    Ok(list)
}

fn authorities(path: &Path) -> Result<RootCertStore, Error> {
    let failed = refused("migration.ca", path);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path).map_err(|reason| failed(&reason))? {
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    Ok(roots)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let failed = refused("migration.key", path);
    let file = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if file.mode() & 0o077 != 0 {
        return Err(failed(&"others may read it: chmod 600"));
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| failed(&error))
}
