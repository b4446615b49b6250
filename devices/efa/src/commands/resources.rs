//! Protection domains, user access regions and address handles.

use peerbar_efa_spec::admin::Status;
use peerbar_efa_spec::admin::resource::{CreateAh, CreatedAh, DestroyAh, Numbered};

use super::{DONE, answer};
use crate::admin_queue::{Answer, Command};
use crate::engine::Engine;
use crate::objects::{CreateAddressHandle, Gid};

impl Engine {
    pub(super) fn create_protection_domain(&mut self) -> Result<Answer, Status> {
        Ok(numbered(self.data.objects().create_protection_domain()?))
    }

    pub(super) fn destroy_protection_domain(
        &mut self,
        command: &Command,
    ) -> Result<Answer, Status> {
        let domain = command.view::<Numbered>()?.number.get();
        self.data.objects().destroy_protection_domain(domain)?;
        Ok(DONE)
    }

    pub(super) fn create_uar(&mut self) -> Result<Answer, Status> {
        Ok(numbered(self.data.objects().create_uar()?))
    }

    pub(super) fn destroy_uar(&mut self, command: &Command) -> Result<Answer, Status> {
        let uar = command.view::<Numbered>()?.number.get();
        self.data.objects().destroy_uar(uar)?;
        Ok(DONE)
    }

    pub(super) fn create_address_handle(&mut self, command: &Command) -> Result<Answer, Status> {
        let parameters = command.view::<CreateAh>()?;
        let parameters = CreateAddressHandle {
            protection_domain: parameters.pd.get(),
            gid: Gid(parameters.destination),
        };
        let handle = self.data.objects().create_address_handle(parameters)?;
        Ok(answer(&CreatedAh {
            ah: handle.into(),
            reserved: 0.into(),
        }))
    }

    pub(super) fn destroy_address_handle(&mut self, command: &Command) -> Result<Answer, Status> {
        let DestroyAh { ah, pd } = command.view()?;
        let mut objects = self.data.objects();
        objects.destroy_address_handle(ah.get(), pd.get())?;
        Ok(DONE)
    }
}

fn numbered(number: u16) -> Answer {
    answer(&Numbered {
        number: number.into(),
        reserved: 0.into(),
    })
}
