//! Simulated ZeroProxies, for numbers and faults that real ones don't come in: small HTTP servers that answer `/reload`
//! as a proxy does whose projection is the test's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{ADMIN_PORT, Projection, add_addresses, address};
use crate::cluster::ApiServer;

/// How a simulated proxy behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It answers at once.
    Prompt,
    /// It takes this long for each answer.
    Slow(Duration),
    /// It accepts, reads and never answers.
    Silent,
    /// Nothing listens.
    Absent,
}

/// Running simulated proxies. Their threads end with the process.
pub struct Simulated {
    calls: Arc<AtomicU64>,
}

impl Simulated {
    /// Starts proxies, each with its number and manner.
    ///
    /// # Errors
    /// When an address or a port can't be had.
    pub fn start(
        server: &ApiServer,
        projection: &Projection,
        proxies: &[(u16, Manner)],
    ) -> Result<Simulated> {
        let place = server.place();
        let addresses: Vec<String> = proxies.iter().map(|(n, _)| address(*n)).collect();
        add_addresses(&place, &addresses)?;
        let listeners = place.on_network(|| {
            let listening = proxies
                .iter()
                .filter(|(_, manner)| *manner != Manner::Absent);
            listening
                .map(|(n, manner)| {
                    let at = format!("{}:{ADMIN_PORT}", address(*n));
                    let listener = TcpListener::bind(&at).with_context(|| at)?;
                    Ok((listener, *manner))
                })
                .collect::<Result<Vec<_>>>()
        })?;
        let calls = Arc::new(AtomicU64::new(0));
        let version: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(projection.version_now());
        for (listener, manner) in listeners {
            let (calls, version) = (calls.clone(), version.clone());
            std::thread::spawn(move || {
                let mut silent = Vec::new();
                while let Ok((stream, _)) = listener.accept() {
                    calls.fetch_add(1, Ordering::Relaxed);
                    match manner {
                        Manner::Silent => silent.push(stream),
                        Manner::Slow(pause) => {
                            std::thread::sleep(pause);
                            // a controller that went away meanwhile is no fault here
                            let _ = answer(&stream, &version());
                        }
                        Manner::Prompt | Manner::Absent => {
                            let _ = answer(&stream, &version());
                        }
                    }
                }
            });
        }
        Ok(Simulated { calls })
    }

    /// How often they were called.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: &TcpStream, active: &str) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        anyhow::ensure!(reader.read_line(&mut line)? > 0, "the request ended early");
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let asked: Value = serde_json::from_slice(&body)?;
    let wanted = asked["version"].as_str().unwrap_or_default();
    let (status, said) = if wanted == active {
        (
            "200 OK",
            json!({"version": active, "generation": 1, "rules": 1}),
        )
    } else {
        let error = "policy version not yet projected";
        (
            "409 Conflict",
            json!({"error": error, "wanted": wanted, "active": active}),
        )
    };
    let said = said.to_string();
    let length = said.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{said}"
    )?;
    Ok(())
}
