# Leaves a warning of Linux's own out of a kernel log. register_irq_proc ignores that it got no
# memory for an interrupt's files; removing the interrupt then warns that one is missing.
/cut here/ { held = ""; holding = 1 }
holding {
	held = held $0 "\n"
	if (/end trace/) {
		holding = 0
		if (held !~ /remove_proc_entry/ || held !~ /unregister_irq_proc/) {
			printf "%s", held
		}
	}
	next
}
{ print }
END {
	if (holding) {
		printf "%s", held
	}
}
