//! Protection domains, user access regions and address handles.

use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::resource::{CreateAh, CreatedAh, DestroyAh, Numbered};

use super::{DONE, answer, refused};
use crate::admin_queue::{Answer, Command};
use crate::engine::Engine;
use crate::objects::{CreateAddressHandle, Gid};

impl Engine {
    pub(super) fn create_protection_domain(&mut self) -> Result<Answer, Status> {
        let created = self.data.objects().create_protection_domain();
        created.map(numbered).map_err(refused)
    }

    pub(super) fn destroy_protection_domain(
        &mut self,
        command: &Command,
    ) -> Result<Answer, Status> {
        let domain = command.view::<Numbered>()?.number.get();
        let destroyed = self.data.objects().destroy_protection_domain(domain);
        destroyed.map(|()| DONE).map_err(refused)
    }

    pub(super) fn create_uar(&mut self) -> Result<Answer, Status> {
        let created = self.data.objects().create_uar();
        created.map(numbered).map_err(refused)
    }

    pub(super) fn destroy_uar(&mut self, command: &Command) -> Result<Answer, Status> {
        let uar = command.view::<Numbered>()?.number.get();
        let destroyed = self.data.objects().destroy_uar(uar);
        destroyed.map(|()| DONE).map_err(refused)
    }

    pub(super) fn create_address_handle(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<CreateAh>()?;
        let parameters = CreateAddressHandle {
            protection_domain: parameters.pd.get(),
            gid: Gid(parameters.destination),
        };
        let created = self.data.objects().create_address_handle(parameters);
        let handle = created.map_err(refused)?;
        Ok(answer(&CreatedAh {
            ah: handle.into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_address_handle(&mut self, command: &Command) -> Result<Answer, Status> {
        let DestroyAh { ah, pd } = command.view()?;
        let mut objects = self.data.objects();
        let destroyed = objects.destroy_address_handle(ah.get(), pd.get());
        destroyed.map(|()| DONE).map_err(refused)
    }
}

fn numbered(number: u16) -> Answer {
    answer(&Numbered {
        number: number.into(),
        reserved: 0.into(),
    })
}
