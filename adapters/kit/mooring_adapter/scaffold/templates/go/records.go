package main

// What the platform's records look like, as far as this adapter reads them.

// Claim is the right to operate an instance, until there is a newer fence.
type Claim struct {
	Instance string `json:"instance_id"`
	Fence    int    `json:"fence"`
}

type Task struct {
	Operation     string   `json:"operation_id"`
	Step          string   `json:"step"`
	Status        string   `json:"status"`
	FailureCode   string   `json:"failure_code"`
	FailureDetail string   `json:"failure_detail"`
	LastLines     []string `json:"last_lines"`
}

type Member struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Status      string `json:"status"`
	Version     string `json:"version"`
	FailureCode string `json:"failure_code"`
	Replaces    string `json:"replaces_id"`
	Allocation  struct {
		Reachable *bool `json:"node_reachable"`
	} `json:"allocation"`
}

func (m Member) reachable() bool { return m.Allocation.Reachable == nil || *m.Allocation.Reachable }
func (m Member) lost() bool      { return m.FailureCode == "node_lost" }
func (m Member) working() bool   { return among(m.Status, "ready", "degraded", "draining", "drained") }

type Pin struct {
	Version string `json:"version"`
}

type Operation struct {
	ID          string   `json:"id"`
	Kind        string   `json:"kind"`
	Status      string   `json:"status"`
	Begun       bool     `json:"begun"`
	Members     []string `json:"member_ids"`
	Target      *Pin     `json:"target_pin"`
	Correlation string   `json:"correlation_id"`
	Request     struct {
		Timeout *float64 `json:"timeout_seconds"`
		Force   bool     `json:"force"`
		Action  string   `json:"action"`
		Input   object   `json:"input"`
	} `json:"request"`
}

type View struct {
	Instance struct {
		Pin       Pin      `json:"pin"`
		Config    object   `json:"config"`
		Endpoints []object `json:"endpoints"`
	} `json:"instance"`
	Members    []Member    `json:"members"`
	Operations []Operation `json:"operations"`
	Tasks      []Task      `json:"tasks"`
}

func (v View) member(id string) Member {
	for _, each := range v.Members {
		if each.ID == id {
			return each
		}
	}
	return Member{ID: id}
}

func among(text string, words ...string) bool {
	for _, each := range words {
		if text == each {
			return true
		}
	}
	return false
}
