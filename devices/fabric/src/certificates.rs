//! The certificates by which fabrics on several machines know each other.
//!
//! One certificate authority signs a certificate for each machine, and its key is thrown away: no other machine can be added later. A
//! fabric takes every certificate of its own authority, so a folder of one machine is as good as that of any other.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::codec::is_name;

/// The name in every certificate: that of a fabric, as the authority vouches for nothing else.
pub(crate) const SERVER_NAME: &str = "peerbar-fabric";

/// What the two ends of a tunnel speak (RFC 7301), with the number of its protocol.
const PROTOCOL: &[u8] = b"peerbar-fabric/1";

const AUTHORITY: &str = "authority.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

/// Why there are no certificates.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A machine's name is none.
    #[error(
        "{0:?} is no name of a machine: use ASCII letters, digits, hyphens, underscores and dots"
    )]
    Name(String),
    /// A machine is named twice.
    #[error("{0:?} is named twice: give each machine a name of its own")]
    Twice(String),
    /// A folder is there already. None is made then, as all have one authority.
    #[error("{} exists: remove it, or name another folder, and make those of all machines again", .0.display())]
    Exists(PathBuf),
    /// They cannot be made.
    #[error("cannot make certificates")]
    Make(#[from] rcgen::Error),
    /// A file cannot be made.
    #[error("cannot make {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {}: name a folder that `peerbar-fabric certificates` made", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// They do not fit each other.
    #[error("the certificates in {} do not fit: make them again", folder.display())]
    Use {
        /// Their folder.
        folder: PathBuf,
        /// Why not.
        source: rustls::Error,
    },
    /// The authority cannot be used.
    #[error("the certificates in {} do not fit: make them again", folder.display())]
    Authority {
        /// Their folder.
        folder: PathBuf,
        /// Why not.
        source: VerifierBuilderError,
    },
    /// No cipher suite fits QUIC.
    #[error("no cipher suite for QUIC")]
    Cipher(#[from] NoInitialCipherSuite),
}

/// Makes a folder of certificates below `folder` for each machine, all signed by one new authority.
///
/// # Errors
/// [`CertificateError::Name`], [`CertificateError::Twice`], [`CertificateError::Exists`], [`CertificateError::Make`], [`CertificateError::Write`].
pub fn make_certificates(folder: &Path, machines: &[String]) -> Result<(), CertificateError> {
    let is_machine = |name: &str| is_name(name) && !name.starts_with('.');
    if let Some(wrong) = machines.iter().find(|name| !is_machine(name)) {
        return Err(CertificateError::Name(wrong.clone()));
    }
    let mut named = BTreeSet::new();
    if let Some(again) = machines.iter().find(|name| !named.insert(*name)) {
        return Err(CertificateError::Twice(again.clone()));
    }
    let exists = |name: &&String| folder.join(name).exists();
    if let Some(machine) = machines.iter().find(exists) {
        return Err(CertificateError::Exists(folder.join(machine)));
    }
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let name = "peerbar-fabric authority";
    params.distinguished_name.push(DnType::CommonName, name);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    for machine in machines {
        let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, machine);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        let folder = folder.join(machine);
        fs::create_dir_all(&folder).map_err(|source| CertificateError::Write {
            path: folder.clone(),
            source,
        })?;
        write(&folder.join(AUTHORITY), &authority.pem())?;
        write(&folder.join(CERTIFICATE), &certificate.pem())?;
        write(&folder.join(KEY), &key.serialize_pem())?;
    }
    Ok(())
}

/// A new file that its owner alone can read.
fn write(path: &Path, text: &str) -> Result<(), CertificateError> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file: File| file.write_all(text.as_bytes()));
    written.map_err(|source| CertificateError::Write {
        path: path.to_owned(),
        source,
    })
}

/// The two sides of TLS, each of which demands a certificate of the same authority.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) server: Arc<QuicServerConfig>,
    pub(crate) client: Arc<QuicClientConfig>,
}

impl Identity {
    /// Reads a folder that [`make_certificates`] made.
    pub(crate) fn read(folder: &Path) -> Result<Self, CertificateError> {
        let provider = Arc::new(default_provider());
        let unusable = |source| CertificateError::Use {
            folder: folder.to_owned(),
            source,
        };
        let mut roots = RootCertStore::empty();
        roots
            .add(certificate(&folder.join(AUTHORITY))?)
            .map_err(unusable)?;
        let roots = Arc::new(roots);
        let chain = vec![certificate(&folder.join(CERTIFICATE))?];
        let path = folder.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path)
            .map_err(|source| CertificateError::Read { path, source })?;
        let versions = &[&rustls::version::TLS13];

        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let verifier = verifier
            .build()
            .map_err(|source| CertificateError::Authority {
                folder: folder.to_owned(),
                source,
            })?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];

        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self {
            server: Arc::new(server.try_into()?),
            client: Arc::new(client.try_into()?),
        })
    }
}

fn certificate(path: &Path) -> Result<CertificateDer<'static>, CertificateError> {
    CertificateDer::from_pem_file(path).map_err(|source| CertificateError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn certificates_are_made_once_and_their_owner_s() {
        let folder = tempfile::tempdir().unwrap();
        let machines = ["a", "b"].map(str::to_owned);
        make_certificates(folder.path(), &machines).unwrap();
        for machine in machines {
            let key = folder.path().join(&machine).join(KEY);
            let mode = fs::metadata(key).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            Identity::read(&folder.path().join(&machine)).unwrap();
            let new = "c".to_owned();
            let again = make_certificates(folder.path(), &[new.clone(), machine]);
            assert!(matches!(again, Err(CertificateError::Exists(_))));
            assert!(!folder.path().join(new).exists());
        }
    }

    #[test]
    fn name_that_leaves_the_folder_or_comes_twice_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "..", "../a", "a/b", ".a"] {
            let refused = make_certificates(folder.path(), &[name.to_owned()]);
            assert!(matches!(refused, Err(CertificateError::Name(_))), "{name}");
        }
        let twice = ["a", "b", "a"].map(str::to_owned);
        let refused = make_certificates(folder.path(), &twice);
        assert!(matches!(refused, Err(CertificateError::Twice(name)) if name == "a"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn missing_or_foreign_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Identity::read(folder.path()).err().unwrap().to_string();
        assert!(
            missing.contains("authority.pem: name a folder"),
            "{missing}"
        );
        let machines = ["a", "b"].map(str::to_owned);
        make_certificates(folder.path(), &machines).unwrap();
        let [a, b] = machines.map(|machine| folder.path().join(machine));
        fs::copy(a.join(KEY), b.join(KEY)).unwrap();
        let foreign = Identity::read(&b).err().unwrap();
        assert!(matches!(foreign, CertificateError::Use { .. }), "{foreign}");
    }
}
