"""The env worker: steps environments and asks the actor for their actions."""
