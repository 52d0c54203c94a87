//! Where the members are: their names, ports and directories.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Remembers which members the directory was made for: they find each other where they did before.
const CLUSTER_FILE: &str = "cluster";

#[derive(Debug)]
pub struct Layout {
    pub directory: PathBuf,
    pub places: Vec<Place>,
}

/// Where one member is.
#[derive(Debug)]
pub struct Place {
    pub name: String,
    pub clients: SocketAddr,
    pub peers: SocketAddr,
    pub directory: PathBuf,
}

impl Layout {
    pub fn new(client_port: u16, peer_port: u16, members: u16, directory: PathBuf) -> anyhow::Result<Layout> {
        for (flag, port) in [("--client-port", client_port), ("--peer-port", peer_port)] {
            if port == 0 || port.checked_add(members - 1).is_none() {
                bail!("{flag} {port}: {members} members need as many ports from there on, between 1 and 65535");
            }
        }
        if client_port.abs_diff(peer_port) < members {
            bail!(
                "--client-port {client_port} and --peer-port {peer_port} overlap: {members} members need as many of each"
            );
        }
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let place = |index: u16| {
            let name = format!("n{}", index + 1);
            let directory = directory.join(&name);
            Place { name, clients: local(client_port + index), peers: local(peer_port + index), directory }
        };
        Ok(Layout { places: (0..members).map(place).collect(), directory })
    }

    pub fn endpoints(&self) -> String {
        self.joined(|place| place.clients.to_string())
    }

    pub fn cluster(&self) -> String {
        self.joined(|place| format!("{}={}", place.name, place.peers))
    }

    fn joined(&self, text: impl Fn(&Place) -> String) -> String {
        self.places.iter().map(text).collect::<Vec<_>>().join(",")
    }

    /// Better now, in one sentence, than from every member.
    pub fn check_ports(&self) -> anyhow::Result<()> {
        for Place { name, clients, peers, .. } in &self.places {
            for (address, flag) in [(clients, "--client-port"), (peers, "--peer-port")] {
                match TcpListener::bind(address) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {
                        bail!(
                            "{address}, the port for {name}, is in use: stop what runs there, or choose others with {flag}"
                        )
                    }
                    Err(error) => bail!("{name} cannot listen on {address}: {error}; choose other ports with {flag}"),
                }
            }
        }
        Ok(())
    }

    /// Makes the directory, or checks that it was made for these members.
    pub fn prepare_directory(&self) -> anyhow::Result<()> {
        let (path, cluster) = (self.directory.join(CLUSTER_FILE), self.cluster());
        match fs::read_to_string(&path) {
            Ok(found) if found.trim_end() == cluster => Ok(()),
            Ok(found) => bail!("{}", foreign(&self.directory, found.trim_end())),
            Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir_all(&self.directory)
                .and_then(|()| fs::write(&path, cluster + "\n"))
                .with_context(|| format!("cannot keep data in {}", self.directory.display())),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

fn foreign(directory: &Path, found: &str) -> String {
    let members = found.split(',').count();
    let port = found.split(',').next().and_then(|first| first.rsplit_once(':')).map_or("?", |(_, port)| port);
    format!(
        "{} holds the data of other members: take them with --members {members} --peer-port {port}, or another directory with --data-dir",
        directory.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(client_port: u16, peer_port: u16) -> String {
        Layout::new(client_port, peer_port, 3, "d".into()).unwrap_err().to_string()
    }

    #[test]
    fn members_count_from_the_first_port() {
        let layout = Layout::new(2379, 2479, 3, "d".into()).unwrap();
        assert_eq!(layout.endpoints(), "127.0.0.1:2379,127.0.0.1:2380,127.0.0.1:2381");
        assert_eq!(layout.cluster(), "n1=127.0.0.1:2479,n2=127.0.0.1:2480,n3=127.0.0.1:2481");
        assert_eq!(layout.places[2].directory, Path::new("d/n3"));
    }

    #[test]
    fn ports_that_cannot_be_are_refused() {
        assert!(refusal(2379, 2381).contains("overlap"));
        assert!(refusal(2381, 2379).contains("overlap"));
        assert!(refusal(65534, 2379).contains("--client-port 65534"));
        assert!(refusal(2379, 0).contains("--peer-port 0"));
        Layout::new(65533, 2379, 3, "d".into()).unwrap();
    }

    #[test]
    fn a_directory_stays_with_its_members() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dev");
        let layout = |port, members| Layout::new(2379, port, members, path.clone()).unwrap();
        layout(2479, 3).prepare_directory().unwrap();
        layout(2479, 3).prepare_directory().unwrap();
        for other in [layout(2579, 3), layout(2479, 5)] {
            let refusal = other.prepare_directory().unwrap_err().to_string();
            assert!(refusal.contains("--members 3 --peer-port 2479"), "{refusal}");
        }
    }
}
