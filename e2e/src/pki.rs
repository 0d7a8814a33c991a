//! A test certificate authority and one server certificate, made by openssl. Owns only files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::place::Place;

/// The names on the server's certificate.
const SERVER_NAMES: &[&str] = &[
    "secure.example.com",
    "other-secure.example.com",
    "api.example.com",
];

/// The files of the authority and the server.
#[derive(Clone, Debug)]
pub struct Pki {
    /// The authority's certificate (PEM).
    pub ca: PathBuf,
    /// The server's certificate (PEM).
    pub certificate: PathBuf,
    /// The server's key (PEM).
    pub key: PathBuf,
}

impl Pki {
    /// Makes both in `dir`.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn create(place: &Place, dir: &Path) -> Result<Pki> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let names: Vec<String> = SERVER_NAMES.iter().map(|n| format!("DNS:{n}")).collect();
        let script = format!(
            r#"set -e; cd {dir}
            k='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            openssl req -x509 $k -keyout ca.key -out ca.pem -days 30 -subj '/CN=e2e test CA' \
              -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
            openssl req $k -keyout server.key -out server.csr -subj /CN={cn}
            printf 'subjectAltName={names}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' > ext
            openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out server.pem"#,
            dir = dir.display(),
            cn = SERVER_NAMES[0],
            names = names.join(","),
        );
        place.sh(&script)?.success()?;
        Ok(Pki {
            ca: dir.join("ca.pem"),
            certificate: dir.join("server.pem"),
            key: dir.join("server.key"),
        })
    }
}
