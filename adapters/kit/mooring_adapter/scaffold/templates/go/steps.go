// Does the steps of a plan that are due. A plan is a list of tracks that run side by side; the steps of a track run one
// after the other. Nothing is kept in memory: the platform's records say which steps are done, so that another process
// continues where this one was killed.
package main

import (
	"context"
	"fmt"
	"log"
	"time"
)

const workSeconds = 15 // then the claims are renewed before the work goes on

// Step is a task, a report about a member (status or version), or an endpoint.
type Step struct {
	Name, Member, Type        string
	Arguments                 object
	Soft                      bool // a failure of the task does not fail the operation
	Status, Version, Endpoint string
	Port                      int
}

type Failure struct {
	Code   string   `json:"code"`
	Detail string   `json:"detail"`
	Lines  []string `json:"last_lines"`
}

type Plan struct {
	Tracks  [][]Step
	Output  object
	Failure *Failure
}

// Due is what is due in an operation: a report, tasks, an end.
type Due struct {
	report object
	tasks  []object
	finish object
}

var codes = map[string]string{
	"timed_out": "step_timeout", "cancelled": "cancelled", "digest_mismatch": "artifact_refused",
	"image_pull_failed": "image_pull_failed", "too_large": "config_refused", "path_refused": "config_refused",
	"permission_denied": "permission_denied", "probe_failed": "unhealthy", "capacity": "no_capacity",
}

func isOver(status string) bool { return among(status, "succeeded", "failed", "cancelled", "expired") }

// attempt finds the newest attempt at a task: an interrupted one is made again as `<step>/2`, then `<step>/3`.
func attempt(view View, operation Operation, step string) (name string, found *Task) {
	for _, name = range []string{step, step + "/2", step + "/3"} {
		found = nil
		for index, each := range view.Tasks {
			if each.Operation == operation.ID && each.Step == name {
				found = &view.Tasks[index]
			}
		}
		if found == nil || !among(found.FailureCode, "interrupted", "host_error") {
			break
		}
	}
	return name, found
}

func why(member Member, name string, task *Task) *Failure {
	failure := &Failure{Code: "runtime_error", Detail: fmt.Sprintf("%s: %s", member.Name, name), Lines: []string{}}
	if task != nil {
		failure.Detail += ": " + task.FailureCode + " " + task.FailureDetail
		failure.Lines = append(failure.Lines, task.LastLines...)
		if code, is := codes[task.FailureCode]; is {
			failure.Code = code
		}
		if task.Status == "expired" {
			failure.Code = "step_timeout"
		}
	}
	if member.lost() || (task != nil && task.Status == "expired" && !member.reachable()) {
		failure.Code = "node_lost"
	}
	return failure
}

func reached(member Member, step Step) bool {
	switch step.Status {
	case "joining":
		return member.working() || member.Status == "joining"
	case "ready":
		return member.working()
	case "":
		return member.Version == step.Version
	}
	return member.Status == step.Status
}

// add puts what is due of one track into the requests; returns whether the track is through.
func (d *Due) add(track []Step, view View, operation Operation, failure **Failure) bool {
	members, _ := d.report["members"].([]object)
	for _, step := range track {
		member := view.member(step.Member)
		name, task := step.Name, (*Task)(nil)
		failed := member.lost() && step.Endpoint == ""
		if step.Type != "" {
			name, task = attempt(view, operation, step.Name)
			if task != nil && task.Status == "succeeded" {
				continue
			}
			failed = failed || (task != nil && isOver(task.Status))
			if failed && step.Soft {
				continue
			}
		} else if step.Endpoint != "" && at(view, step.Endpoint) == member.ID {
			continue
		} else if step.Endpoint == "" && reached(member, step) {
			continue
		}
		switch {
		case failed:
			*failure = why(member, name, task)
			if member.Status == "joining" {
				d.report["members"] = append(members, object{"id": member.ID, "status": "failed", "failure": *failure})
			}
		case step.Type != "" && task == nil:
			d.tasks = append(d.tasks, object{"step": name, "member_id": member.ID, "type": step.Type, "arguments": step.Arguments})
		case step.Endpoint != "":
			endpoint := object{"name": step.Endpoint, "protocol": "http", "port": step.Port, "member_id": member.ID}
			d.report["instance"] = object{"health": "healthy", "endpoints": []object{endpoint}}
		case step.Status != "":
			d.report["members"] = append(members, object{"id": member.ID, "status": step.Status})
		case step.Version != "":
			d.report["members"] = append(members, object{"id": member.ID, "version": step.Version})
		}
		return false
	}
	return true
}

func at(view View, name string) string {
	for _, each := range view.Instance.Endpoints {
		if each["name"] == name {
			return fmt.Sprint(each["member_id"])
		}
	}
	return ""
}

func due(view View, operation Operation, plan Plan) Due {
	found := Due{report: object{}}
	if operation.Status == "cancelling" {
		for _, each := range view.Tasks {
			if each.Operation == operation.ID && !isOver(each.Status) {
				return found
			}
		}
		found.finish = object{"outcome": "cancelled"}
		return found
	}
	if !operation.Begun {
		found.report["begin"] = true
	}
	through, failure := true, plan.Failure
	for _, track := range plan.Tracks {
		through = found.add(track, view, operation, &failure) && through
	}
	if failure != nil {
		found.tasks, found.finish = nil, object{"outcome": "failed", "failure": failure}
	} else if through {
		found.finish = object{"outcome": "succeeded"}
		if plan.Output != nil {
			found.finish["output"] = plan.Output
		}
	}
	return found
}

// perform sends what is due; returns whether there was anything.
func (a *Account) perform(path string, fence int, operation Operation, wanted Due) (bool, error) {
	post := func(route string, body object, answer any) error {
		body["fence"], body["operation_id"] = fence, operation.ID
		if route[0] == 'o' {
			delete(body, "operation_id")
		}
		return a.call(context.Background(), "POST", path+"/"+route, operation.Correlation, body, answer)
	}
	if len(wanted.report) > 0 {
		if err := post("reports", wanted.report, &object{}); err != nil {
			return true, err
		}
	}
	for tasks := wanted.tasks; len(tasks) > 0; {
		count := len(tasks)
		if count > 50 {
			count = 50
		}
		var made struct {
			Tasks []struct {
				Refusal *struct {
					Code, Detail string
					Retryable    bool
				}
			}
		}
		if err := post("tasks:batch", object{"tasks": tasks[:count]}, &made); err != nil {
			return true, err
		}
		for _, each := range made.Tasks {
			if each.Refusal != nil && !each.Refusal.Retryable && each.Refusal.Code != "conflict" {
				return true, &Refusal{422, each.Refusal.Code, each.Refusal.Detail}
			}
		}
		tasks = tasks[count:]
	}
	if wanted.finish != nil {
		return true, post("operations/"+operation.ID+"/finish", wanted.finish, &object{})
	}
	return len(wanted.report)+len(wanted.tasks) > 0, nil
}

// planned calls the plan; a panic in it fails the operation, and nothing more.
func planned(view View, operation Operation, plan func(View, Operation) Plan) (made Plan) {
	defer func() {
		if reason := recover(); reason != nil {
			made = failed("adapter_error", fmt.Sprint("the plan: ", reason))
		}
	}()
	return plan(view, operation)
}

func failed(code, detail string) Plan {
	return Plan{Failure: &Failure{Code: code, Detail: detail, Lines: []string{}}}
}

// work advances one instance until nothing is due; returns whether that was reached.
func (a *Account) work(ctx context.Context, instance string, fence int, plan func(View, Operation) Plan) bool {
	path := "/instances/" + instance
	for until := time.Now().Add(workSeconds * time.Second); time.Now().Before(until) && ctx.Err() == nil; {
		did, err := a.advance(ctx, path, fence, plan)
		if refusal, is := err.(*Refusal); is && (refusal.Status == 404 || refusal.Code == "lease_lost") {
			delete(a.held, instance)
			return true
		} else if is && refusal.Status == 403 {
			return true
		}
		if err != nil {
			log.Printf("a request for %s failed; reading it again: %v", instance, err)
			time.Sleep(200 * time.Millisecond)
		} else if !did {
			return true
		}
	}
	return false
}

func (a *Account) advance(ctx context.Context, path string, fence int, plan func(View, Operation) Plan) (bool, error) {
	var view View
	if err := a.call(ctx, "GET", fmt.Sprintf("%s?fence=%d", path, fence), "", nil, &view); err != nil {
		return false, err
	}
	any := false
	for _, operation := range view.Operations {
		did, err := a.perform(path, fence, operation, due(view, operation, planned(view, operation, plan)))
		if refusal, is := err.(*Refusal); is && among(fmt.Sprint(refusal.Status), "400", "403", "413", "422") {
			log.Printf("operation %s (%s) fails: %v", operation.ID, operation.Correlation, err)
			code := map[bool]string{true: "permission_denied", false: "adapter_error"}[refusal.Status == 403]
			did, err = a.perform(path, fence, operation, due(view, operation, failed(code, err.Error())))
		}
		if err != nil {
			return true, err
		}
		any = any || did
	}
	return any, nil
}
