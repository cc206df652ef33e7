// The adapter of example-app: what the app needs for each kind of operation. A plan is a pure function from the records
// to all steps of an operation; steps.go does those that are due, and asks for the plan again after each change.
package main

import (
	"fmt"
	"strconv"
)

const app = "example-app"

// portOf is a port of its own: on a host without isolated networks all members share the ports of the machine.
func portOf(member Member) int {
	number := uint32(5381)
	for _, character := range member.ID {
		number = number*33 + uint32(character)
	}
	return 20_000 + int(number%12_000)
}

func task(member Member, name, kind string, arguments object) Step {
	return Step{Name: name + "/" + member.ID, Member: member.ID, Type: kind, Arguments: arguments}
}

// greetingOf is what the configuration says; the instance keeps the old one until a `configure` has succeeded.
func greetingOf(view View, operation Operation) any {
	config := view.Instance.Config
	if operation.Kind == "configure" {
		config = operation.Request.Input
	}
	if greeting, is := config["greeting"]; is {
		return greeting
	}
	return "Hello"
}

// start writes the program, starts it, and sees that it answers.
func start(member Member, version string, greeting any) []Step {
	port, directory := portOf(member), "/srv/"+app+"/"+member.ID
	return []Step{
		task(member, "files", "files.write", object{"files": []object{
			{"path": directory + "/server.py", "mode": "0644", "artifact": "program"}}}),
		task(member, "start", "service.start", object{
			"name": app, "argv": []string{"python3", "server.py", strconv.Itoa(port)}, "directory": directory,
			"environment": object{"APP_VERSION": version, "APP_GREETING": greeting},
			"restart":     object{"policy": "on_failure", "backoff_seconds": 1, "limit": 10},
			"endpoint":    object{"name": "web", "port": port, "protocol": "http"}}),
		task(member, "probe", "probe.http", object{"port": port, "path": "/ready", "attempts": 40, "interval_seconds": 0.25}),
	}
}

// bringUp goes from nothing to a ready member.
func bringUp(view View, operation Operation, member Member) []Step {
	steps := []Step{{Member: member.ID, Status: "joining"}}
	steps = append(steps, start(member, view.Instance.Pin.Version, greetingOf(view, operation))...)
	return append(steps, Step{Member: member.ID, Status: "ready"})
}

func endpoint(member Member) Step {
	return Step{Member: member.ID, Endpoint: "web", Port: portOf(member)}
}

// quiet looks until it has no work, as long as the caller allows. If your app can refuse new work, let it do so first.
func quiet(operation Operation, member Member) Step {
	attempts := 60
	if seconds := operation.Request.Timeout; seconds != nil {
		attempts = int(*seconds)
	}
	if attempts < 1 {
		attempts = 1
	} else if attempts > 600 {
		attempts = 600
	}
	look := task(member, "quiet", "probe.http", object{
		"port": portOf(member), "path": "/quiet", "interval_seconds": 1, "attempts": attempts})
	look.Soft = true
	return look
}

func stop(member Member) Step {
	step := task(member, "stop", "service.stop", object{"name": app, "grace_seconds": 5})
	step.Soft = true
	return step
}

// leave lets its work end, then stops it; a failed member has nothing to stop.
func leave(operation Operation, member Member) []Step {
	if !member.working() || !member.reachable() {
		return nil
	}
	if operation.Kind == "decommission" || operation.Request.Force {
		return []Step{stop(member)}
	}
	return []Step{quiet(operation, member), stop(member)}
}

func plan(view View, operation Operation) Plan {
	members, named := []Member{}, []Member{}
	for _, each := range view.Members {
		if !among(each.Status, "removing", "removed") {
			members = append(members, each)
		}
		if among(each.ID, operation.Members...) {
			named = append(named, each)
		}
	}
	concerned := named
	if len(named) == 0 {
		concerned = members
	}
	made := Plan{}
	switch operation.Kind {
	case "deploy", "add", "repair", "reconcile":
		for _, each := range concerned {
			if among(operation.Kind, "deploy", "add") || among(each.Status, "requested", "joining", "failed") {
				made.Tracks = append(made.Tracks, bringUp(view, operation, each))
			}
		}
		if operation.Kind == "deploy" {
			made.Tracks[0] = append(made.Tracks[0], endpoint(concerned[0]))
		}
	case "drain":
		return drain(view, operation, named[0])
	case "remove", "decommission":
		for _, each := range concerned {
			made.Tracks = append(made.Tracks, leave(operation, each))
		}
	case "replace": // the new member first
		up, down := []Step{}, []Step{}
		for _, each := range named {
			if each.Replaces != "" {
				up = append(append(up, bringUp(view, operation, each)...), endpoint(each))
			} else {
				down = append(down, leave(operation, each)...)
			}
		}
		made.Tracks = [][]Step{append(up, down...)}
	case "upgrade", "rollback", "restart", "configure":
		return roll(view, operation, members)
	case "action":
		if operation.Request.Action == "page.greet" {
			return greet(view, operation)
		}
		return failed("adapter_error", "there is no action "+operation.Request.Action)
	default:
		return failed("adapter_error", "no plan for "+operation.Kind)
	}
	return made
}

// drain: drained means seen to be quiet.
func drain(view View, operation Operation, member Member) Plan {
	look := quiet(operation, member)
	if _, seen := attempt(view, operation, look.Name); seen != nil && among(seen.Status, "failed", "expired", "cancelled") {
		return failed("not_quiet", member.Name+" still has work")
	}
	return Plan{Tracks: [][]Step{{look, {Member: member.ID, Status: "drained"}}}}
}

// roll is one track: it stops and starts one member after the other, so that the rest serves.
func roll(view View, operation Operation, members []Member) Plan {
	version, steps := view.Instance.Pin.Version, []Step{}
	if operation.Target != nil {
		version = operation.Target.Version
	}
	for _, each := range members {
		if !each.working() {
			continue
		}
		steps = append(append(steps, stop(each)), start(each, version, greetingOf(view, operation))...)
		if operation.Target != nil {
			steps = append(steps, Step{Member: each.ID, Version: version})
		}
	}
	return Plan{Tracks: [][]Step{steps}}
}

func greet(view View, operation Operation) Plan {
	for _, each := range view.Members {
		if each.Status != "ready" {
			continue
		}
		step := task(each, "greet", "process.run", object{"argv": []string{"echo", fmt.Sprint("Hello, ", operation.Request.Input["name"])}})
		greeting := ""
		if _, done := attempt(view, operation, step.Name); done != nil && len(done.LastLines) > 0 {
			greeting = done.LastLines[len(done.LastLines)-1]
		}
		return Plan{Tracks: [][]Step{{step}}, Output: object{"greeting": greeting}}
	}
	return failed("unhealthy", "no member is ready")
}
