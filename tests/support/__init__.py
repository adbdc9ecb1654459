"""What tests share: environments, agents and fleets to try things on."""
